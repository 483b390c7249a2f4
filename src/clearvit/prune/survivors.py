"""The patches still in the sequence, and what the others look like on the full grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from clearvit.prune.selection import Choice, averaged, rows

Fill = Literal["similar", "delta", "last", "mean", "learned"]
"""What a dropped patch shows on the full grid.

- `similar`: the value of the kept patch whose key was most like its own when it was dropped, or of
  the group it was merged into.
- `delta`: the same plus the difference the two had then.
- `last`: the value it had when it was dropped; measurably bad, see docs/prune.md.
- `mean`: the mean of the kept patches.
- `learned`: what a trained `LearnedFill` makes of `similar` and `last`, also where patches were
  averaged.
"""

FILLS: tuple[Fill, ...] = get_args(Fill)


@dataclass(frozen=True)
class Survivors:
    """Bookkeeping of B images whose N patches have become K."""

    places: Tensor  # (B, K) where the patches lie on the grid, ascending
    heirs: Tensor  # (B, N) which of the K stands for each patch of the grid
    sizes: Tensor  # (B, K) how many patches each one holds; 1 unless merged
    memory: Tensor | None = None  # (B, N, C) what "delta", "last", "learned" remember

    @staticmethod
    def everyone(batch: int, count: int, device: torch.device) -> Survivors:
        """Begin with all patches of the grid."""
        places = torch.arange(count, device=device).expand(batch, -1)
        return Survivors(places, places, torch.ones(batch, count, device=device))

    @property
    def complete(self) -> bool:
        """Whether nothing was dropped yet."""
        return self.places.shape[1] == self.heirs.shape[1]

    @property
    def mask(self) -> Tensor:
        """Which patches are still there, (B, N) bool."""
        return torch.zeros_like(self.heirs).scatter(1, self.places, 1).bool()

    @property
    def alone(self) -> Tensor:
        """Which patches are still there and hold nobody else, (B, N) bool."""
        return self.mask & (self.sizes.gather(1, self.heirs) == 1)


def shortened(
    x: Tensor, survivors: Survivors, choice: Choice, *, fill: Fill, average: bool
) -> tuple[Tensor, Survivors]:
    """Carry out a choice on patches (B, K, C).

    Args:
        x: The patches in the sequence.
        survivors: Who they are.
        choice: Who stays, and who stands for the others.
        fill: What to remember of those who leave.
        average: Whether the kept take in those they stand for, or those are just dropped.
    """
    if average:
        shorter, sizes = averaged(x, survivors.sizes, choice)
    else:
        shorter, sizes = rows(x, choice.kept), survivors.sizes.gather(1, choice.kept)
    places = survivors.places.gather(1, choice.kept)
    heirs = choice.heirs.gather(1, survivors.heirs)
    memory = None
    if fill in ("delta", "last"):
        memory = filled(x, survivors, fill)
        memory = memory - rows(shorter, heirs) if fill == "delta" else memory
    if fill == "learned":
        memory = left_behind(x, survivors)
    return shorter, Survivors(places, heirs, sizes, memory)


def left_behind(x: Tensor, survivors: Survivors) -> Tensor:
    """Each patch as it was when it was last on its own, (B, K, C) -> (B, N, C)."""
    if survivors.memory is None:
        return x
    return torch.where(survivors.alone[..., None], rows(x, survivors.heirs), survivors.memory)


def filled(x: Tensor, survivors: Survivors, fill: Fill) -> Tensor:
    """Bring patches (B, K, C) back to the full grid, (B, N, C); "learned" shows the heirs."""
    if survivors.complete:
        return x
    spread = rows(x, survivors.heirs)
    if fill in ("similar", "learned"):
        return spread
    if fill == "delta":
        assert survivors.memory is not None
        return spread + survivors.memory
    other = x.mean(dim=1, keepdim=True) if fill == "mean" else survivors.memory
    assert other is not None
    return torch.where(survivors.mask[..., None], spread, other)
