"""Which fraction of two images has a counterpart in the other?"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 0.05  # of the mass; a plan that moves nothing has no score
SEPARATE = 0.8  # explained variance; a normal distribution reaches 0.64 and a uniform one 0.75
RECIPROCAL = 2  # places: a patch has a counterpart that it is among the best two of


@torch.no_grad()
def estimate_mass(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Estimate the fraction of mass that has a counterpart, pair by pair, without labels.

    A location has a counterpart if it is among the best two for the location that is best for it:
    where the other image does not show the thing, that location has better partners. And where the
    best similarities of all locations fall into two groups (the best split explains at least
    SEPARATE of their variance), it must belong to the upper one.

    Args:
        similarity: (..., R, Q).
        u: Weights of the rows, (..., R), that sum to 1.
        v: Weights of the columns, (..., Q), that sum to 1.

    Returns:
        The smaller of the two images' fractions, in [LEAST, 1], (...).
    """
    blocked = (u[..., :, None] <= 0) | (v[..., None, :] <= 0)
    allowed = similarity.masked_fill(blocked, -torch.inf)
    sides = ((allowed, u), (allowed.transpose(-1, -2), v))
    level = _level(allowed.amax(-1), allowed.amax(-2), u, v)[..., None]
    ours, theirs = (
        (weights * (_has_counterpart(one) & (one.amax(-1) > level))).sum(-1)
        for one, weights in sides
    )
    return torch.minimum(ours, theirs).clamp(LEAST, 1)


def _level(rows: Tensor, columns: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Give the best similarity (...) above which a match is one, if there are two groups."""
    weights = torch.cat([u, v], -1) / 2
    values = torch.cat([rows, columns], -1).masked_fill(weights <= 0, 0.0)
    level, explained = otsu_split(values, weights)
    return torch.where(explained >= SEPARATE, level, -torch.inf)


def _has_counterpart(similarity: Tensor) -> Tensor:
    """Tell which rows of (..., R, Q) are among the best of their own best column, (..., R) bool."""
    best, column = similarity.max(-1)
    places = min(RECIPROCAL, similarity.shape[-2])
    needed = similarity.topk(places, dim=-2).values[..., -1, :]  # (..., Q)
    return (best >= needed.gather(-1, column)) & best.isfinite()


def otsu_split(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Split weighted values where the two groups differ most (Otsu).

    Args:
        values: (..., N).
        weights: (..., N), summing to 1.

    Returns:
        The threshold, which belongs to the lower group, and the fraction of the variance that the
        split explains, 0 for constant values; (...) each.
    """
    ordered, index = values.sort(-1)
    mass = weights.gather(-1, index)
    below = mass.cumsum(-1)
    mean = (mass * ordered).sum(-1, keepdim=True)
    gap = below * mean - (mass * ordered).cumsum(-1)
    between = gap.square() / (below * (1 - below)).clamp(min=1e-12)
    between = between[..., :-1]  # the last value always belongs to the upper group
    best = between.argmax(-1, keepdim=True)
    variance = (mass * (ordered - mean).square()).sum(-1)
    noise = torch.finfo(values.dtype).eps ** 1.5 * (1 + mean.squeeze(-1).square())
    explained = between.gather(-1, best).squeeze(-1) / variance.clamp(min=1e-30)
    level = ordered.gather(-1, best).squeeze(-1)
    return level, torch.where(variance > noise, explained, 0.0)
