"""Whitening of vectors: without the mean and the strong directions of a collection.

Jégou and Chum, "Negative evidences and co-occurences in image retrieval: the benefit of PCA and
whitening" (ECCV 2012); the power below 1 keeps part of the differences in variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clearvit.errors import ModelError, StoreError

RIDGE = 0.01  # of the mean variance, added to each: directions that hardly vary are not blown up


@dataclass(frozen=True)
class Whitening:
    """A mean to take away and directions that are scaled so that they vary alike.

    Cosines of plain vectors, which share a large mean and a few strong directions, tell little
    apart; those of whitened vectors do. Fit it on the images of an index and use it on queries too.
    """

    mean: Tensor  # (C,)
    matrix: Tensor  # (C, K): columns are principal directions, strongest first, scaled

    @staticmethod
    def fit(vectors: Tensor, *, channels: int | None = None, power: float = 1.0) -> Whitening:
        """Measure a collection, (..., C), at least two vectors; no label is used.

        Args:
            vectors: What to measure.
            channels: How many of the strongest directions to keep; all if None.
            power: Directions are divided by their standard deviation to this power, 0 to 1; 0 is
                PCA, 1 makes all of them vary alike.
        """
        flat = vectors.reshape(-1, vectors.shape[-1]).float()
        if len(flat) < 2:
            raise ModelError(f"whitening needs at least 2 vectors, not {len(flat)}.")
        if not 0 <= power <= 1:
            raise ModelError(f"the power of whitening is {power:g}; use 0 to 1.")
        mean = flat.mean(0)
        centered = flat - mean
        values, directions = torch.linalg.eigh(centered.T @ centered / len(flat))
        values, directions = values.flip(0).clamp(min=0), directions.flip(1)
        floor = RIDGE * values.mean() + torch.finfo(values.dtype).tiny
        scaled = directions * (values + floor) ** (-power / 2)
        return Whitening(mean, scaled[:, :channels].contiguous())

    def __call__(self, vectors: Tensor) -> Tensor:
        """Whiten vectors (..., C) to (..., K); normalize them before they are compared."""
        whitened: Tensor = (vectors.to(self.mean) - self.mean) @ self.matrix
        return whitened


def whitenings_to_bytes(whitenings: dict[str, Whitening]) -> bytes:
    """Write whitenings by name, in the format of safetensors."""
    tensors: dict[str, Tensor] = {}
    for name, one in sorted(whitenings.items()):
        tensors |= {f"{name}.mean": one.mean, f"{name}.matrix": one.matrix}
    return save(tensors)


def whitenings_from_bytes(content: bytes) -> dict[str, Whitening]:
    """Read what `whitenings_to_bytes` wrote; refuses anything else."""
    try:
        tensors = load(content)
        names = {key.rsplit(".", 1)[0] for key in tensors}
        found = {n: Whitening(tensors[f"{n}.mean"], tensors[f"{n}.matrix"]) for n in names}
    except (SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"the whitening of the index cannot be read: {error}") from error
    for one in found.values():
        fits = one.mean.ndim == 1 and one.matrix.ndim == 2 and len(one.mean) == len(one.matrix)
        floats = one.mean.dtype == one.matrix.dtype == torch.float32
        if not (fits and floats and one.mean.isfinite().all() and one.matrix.isfinite().all()):
            raise StoreError("the whitening of the index has wrong shapes or values.")
    return found
