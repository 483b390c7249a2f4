"""Options of `cv.bench` and `clearvit bench`."""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.errors import OptionError
from clearvit.options import Options, Size, option, size_option
from clearvit.pruning.config import speed_target


@dataclass(frozen=True)
class BenchConfig(Options):
    """How to time models."""

    size: int | Size | None = size_option(
        "Input", "that of an exported graph, else of the first model"
    )
    batch: tuple[int, ...] = option(
        (1, 8, 32), "Batch sizes to time, images per forward pass.", panel="Input", minimum=1
    )
    keep: float | tuple[float, ...] | str | None = option(
        None,
        "Add a copy of the first model that is pruned to this fraction of patches: 0.7, one per"
        " stage as 0.7,0.5,0.3, or a speed as 2x.",
        panel="Input",
        above=0,
        maximum=1,
    )
    images: str | None = option(
        None,
        "Folder, file or glob pattern of images on which to compare the tokens of all models with"
        " the first one's; folders of classes give top-1 and 1-NN accuracy.",
        panel="Input",
    )
    draw: str | None = option(
        None,
        "Folder, file or glob pattern of images on which to draw the patches that pruned models"
        " keep.",
        panel="Output",
    )
    rounds: int = option(7, "Interleaved rounds at most.", panel="Timing", minimum=1)
    patience: float = option(
        60.0,
        "Seconds per batch size after which no new round begins, once there are three.",
        panel="Timing",
        minimum=0,
    )
    memory: bool = option(
        True, "Measure peak memory, each model in a process of its own.", panel="Timing"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.batch:
            raise OptionError("batch is empty; give sizes from 1, as 1,8,32.", "batch")
        if isinstance(self.keep, str):
            speed_target(self.keep)
