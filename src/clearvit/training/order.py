"""Which images make which step: a function of the seed and the step, so nothing has to be saved."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BatchOrder:
    """A new shuffle of `count` images every epoch, cut into batches.

    What does not fill a batch at the end of an epoch is left out until the next shuffle.
    """

    count: int
    batch: int  # images of a step, over all processes
    seed: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        return self.count // self.batch

    def images(self, step: int) -> list[int]:
        """List the images of a step, counted from the very first one."""
        epoch, inside = divmod(step, self.steps_per_epoch)
        shuffled = torch.randperm(self.count, generator=seeded_generator(self.seed, epoch))
        return shuffled[inside * self.batch : (inside + 1) * self.batch].tolist()

    def local_images(self, step: int, process: int, processes: int) -> list[int]:
        """List the images of a step that one of several processes works on."""
        size = self.batch // processes
        return self.images(step)[process * size : (process + 1) * size]


def seeded_generator(seed: int, number: int) -> torch.Generator:
    """Give random numbers that depend on a seed and a number only, whatever came before."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)
