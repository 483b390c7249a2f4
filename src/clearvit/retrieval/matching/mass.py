"""Which fraction of two images has a counterpart in the other?"""

from __future__ import annotations

import torch
from torch import Tensor

SEPARATE = 0.8  # explained variance; a normal distribution reaches 0.64 and a uniform one 0.75
LEAST = 0.05  # of the mass; a plan that moves nothing has no score


@torch.no_grad()
def estimate_mass(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Estimate the fraction of mass that has a counterpart, pair by pair, without labels.

    Each location is judged by its best match. If these values, of both images together, fall into
    two groups (the best split explains at least SEPARATE of their variance), the mass of the upper
    group is moved: the smaller of the two images' fractions. Else all of it.

    Args:
        similarity: (..., R, Q).
        u: Weights of the rows, (..., R), that sum to 1.
        v: Weights of the columns, (..., Q), that sum to 1.

    Returns:
        Fractions in [LEAST, 1], (...).
    """
    blocked = (u[..., :, None] <= 0) | (v[..., None, :] <= 0)
    allowed = similarity.masked_fill(blocked, -torch.inf)
    rows, columns = allowed.amax(-1), allowed.amax(-2)
    values = torch.cat([rows, columns], -1)
    weights = torch.cat([u, v], -1) / 2
    level, explained = otsu_split(values.masked_fill(weights <= 0, 0.0), weights)
    upper = [(m * (best > level[..., None])).sum(-1) for best, m in ((rows, u), (columns, v))]
    fraction = torch.minimum(*upper).clamp(LEAST, 1)
    return torch.where(explained >= SEPARATE, fraction, torch.ones_like(fraction))


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
