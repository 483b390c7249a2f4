"""Whitening of patch vectors: without the mean and the strong directions of a collection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.errors import ModelError

RIDGE = 0.01  # of the mean variance, added to each: directions that hardly vary are not blown up


@dataclass(frozen=True)
class Whitening:
    """A mean to take away and a matrix that makes what is left uncorrelated.

    Cosines of plain vectors, which share a large mean and a few strong directions, tell little
    apart; those of whitened vectors do. Fit it on the images of an index and use it on queries too.
    """

    mean: Tensor  # (C,)
    matrix: Tensor  # (C, C), symmetric

    @staticmethod
    def fit(patches: Tensor) -> Whitening:
        """Measure a collection, (..., C), at least two vectors; no label is used."""
        flat = patches.reshape(-1, patches.shape[-1]).float()
        if len(flat) < 2:
            raise ModelError(f"whitening needs at least 2 vectors, not {len(flat)}.")
        mean = flat.mean(0)
        centered = flat - mean
        values, vectors = torch.linalg.eigh(centered.T @ centered / len(flat))
        values = values.clamp(min=0)
        scale = (values + RIDGE * values.mean() + torch.finfo(values.dtype).tiny).rsqrt()
        return Whitening(mean, (vectors * scale) @ vectors.T)

    def __call__(self, patches: Tensor) -> Tensor:
        """Whiten vectors (..., C); normalize them before they are compared."""
        whitened: Tensor = (patches.to(self.mean) - self.mean) @ self.matrix
        return whitened
