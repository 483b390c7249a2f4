"""What can be chosen."""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.errors import ModelError

LEAST = {"repeats": 1, "patience": 0}


@dataclass(frozen=True)
class BenchConfig:
    """Options of `bench` and of `clearvit bench`."""

    size: int | tuple[int, int] | None = None  # pixels, for all models; None is the first's own
    batches: tuple[int, ...] = (1, 8, 32)  # images per forward pass
    repeats: int = 7  # rounds at most, after one that warms up
    patience: float = 60.0  # seconds of a batch size after which no new round begins; 3 are made
    memory: bool = True  # load every model once more in a process of its own to see its peak

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ModelError(f"{name} is {getattr(self, name)}; give at least {least}.")
        if not self.batches or min(self.batches) < 1:
            raise ModelError(f"batches are {self.batches}; give sizes from 1, as (1, 8, 32).")
