"""A running mean of the weights: steps of a few images are noisy, their mean is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

YOUNG = 10  # a mean over fewer steps than these forgets faster, or it would cling to the start


class Ema:
    """The exponential mean of the weights that train, step after step.

    Args:
        module: Its trained weights begin the mean.
        decay: Share of the mean that a step leaves, in [0, 1); 0.99 looks back over 100 steps,
            0 keeps no mean: the weights of the last step stand for it.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        wanted = module.named_parameters() if decay else ()
        self.trained = {name: p for name, p in wanted if p.requires_grad}
        self.weights = {name: p.detach().clone() for name, p in self.trained.items()}

    def add(self, steps: int) -> None:
        """Take in the weights as they are after so many steps."""
        decay = min(self.decay, (1 + steps) / (YOUNG + steps))
        with torch.no_grad():
            for name, mean in self.weights.items():
                mean.lerp_(self.trained[name], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the mean into the module for a while."""
        last = {name: p.detach().clone() for name, p in self.trained.items()}
        self._set(self.weights)
        try:
            yield
        finally:
            self._set(last)

    def _set(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(weights[name])
