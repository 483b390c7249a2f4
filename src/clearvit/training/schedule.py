"""The learning rate of every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Rise to the full rate over some steps, then fall exponentially.

    The rate falls once per epoch, as PH-Reg does it: after epoch e of E it is `end ** (e / E)` of
    the full rate.
    """

    steps: int  # per epoch
    epochs: int
    warmup: int = 0  # steps
    end: float = 0.05  # share of the full rate that is left at the end

    def factor(self, step: int) -> float:
        """Share of the full rate for a step counted from 0, in (0, 1]."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        fall: float = self.end ** (step // self.steps / self.epochs)
        return rise * fall
