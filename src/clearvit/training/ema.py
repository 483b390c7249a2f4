"""Exponential moving average (EMA) of the weights: steps of a few images are noisy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

WARMUP = 10  # updates; an average over fewer decays faster, or it would cling to the start


def trained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Give all that a training changes, by name: trainable weights, and buffers that move.

    A module whose forward pass changes buffers lists them as `moving_buffers`.
    """
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    buffers: dict[str, Tensor] = getattr(module, "moving_buffers", {})
    return weights | buffers


class Ema:
    """The moving average of the trained weights, and of buffers that move.

    timm's ModelEmaV3 copies the whole module, frozen teacher and all; here only what trains is
    held, under the names the state file uses, and is evaluated inside the module itself.

    Args:
        module: Its trainable weights begin the average.
        decay: Of the average, in [0, 1); 0.99 looks back over 100 steps, 0 keeps no average.
        warmup: Whether the decay is smaller in the first steps.
    """

    def __init__(self, module: nn.Module, decay: float, *, warmup: bool = True) -> None:
        self.decay, self.warmup = decay, warmup
        self.trainable = trained_tensors(module) if decay else {}
        self.weights = {name: p.detach().clone() for name, p in self.trainable.items()}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Take in the weights as they are after so many steps."""
        young = (1 + steps) / (WARMUP + steps)
        decay = min(self.decay, young) if self.warmup else self.decay
        for name, average in self.weights.items():
            average.lerp_(self.trainable[name], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the module for a while."""
        current = {name: p.detach().clone() for name, p in self.trainable.items()}
        self._copy(self.weights)
        try:
            yield
        finally:
            self._copy(current)

    @torch.no_grad()
    def _copy(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.trainable.items():
            parameter.copy_(weights[name])
