"""What the student is told: cosine and squared distance to the clean tokens, patch by patch."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-8  # added to the lengths, as published


def cosine(student: Tensor, target: Tensor) -> Tensor:
    """Cosine of each token with its target, (..., C) -> (...), in float32."""
    student, target = student.float(), target.float()
    lengths = (student.norm(dim=-1) + TINY) * (target.norm(dim=-1) + TINY)
    product: Tensor = (student * target).sum(-1) / lengths
    return product


def distances(student: Tensor, target: Tensor, *, mse: float = 1.0) -> Tensor:
    """Compute 1 - cosine + mse * mean squared difference of each token, (..., C) -> (...)."""
    squared: Tensor = (student.float() - target.float()).square().mean(-1)
    return 1 - cosine(student, target) + mse * squared


def distance(
    student: Tensor, target: Tensor, *, mse: float = 1.0, weights: Tensor | None = None
) -> Tensor:
    """Compute (1 - mean cosine) + mse * mean squared difference.

    Args:
        student: Tokens (B, N, C).
        target: Clean tokens of the same shape.
        mse: Weight of the squared difference, the lambda of PH-Reg.
        weights: How much each patch counts, (B, N), any scale; all the same by default.
    """
    each = distances(student, target, mse=mse)
    if weights is None:
        return each.mean()
    return (each * weights).sum() / weights.sum()


def confidence(variance: Tensor) -> Tensor:
    """Turn the variance of each patch over its views (B, N) into a weight in (0, 1].

    A patch on which the views of a picture disagree as much as is usual for this picture counts
    half.
    """
    usual = variance.median(dim=1, keepdim=True).values.clamp(min=torch.finfo(variance.dtype).tiny)
    return usual / (usual + variance)
