"""The Sinkhorn loop of the published re-ranking codes, to reproduce their numbers.

Prefer `transport`: this loop stops when a mean over the whole batch changes little, so a score
depends on the batch, partial transport moves less mass than asked, and a marginal that is zero
everywhere gives NaN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LIMIT = 100
STILL = 0.1
EPSILON = 0.05


def official_transport(similarity: Tensor, u: Tensor, v: Tensor, mass: float = 1.0) -> Tensor:
    """Plans of a batch as DIML (mass 1) and vit-reranking (mass < 1) compute them.

    Args:
        similarity: Cosines (B, R, Q), rows = candidate locations, columns = query locations.
        u: Weights of the rows (B, R), as `official_weights` makes them.
        v: Weights of the columns (B, Q).
        mass: What is asked for; less is moved.
    """
    kernel = ((similarity - 1) / EPSILON).exp()
    if mass < 1:
        kernel = F.pad(kernel, (0, 1, 0, 1), value=1 - mass)
        kernel[:, -1, -1] = 0
        u, v = (F.pad(w, (0, 1), value=1 - mass) for w in (u, v))
    rows, columns = torch.ones_like(u), torch.ones_like(v)
    for _ in range(LIMIT):
        before = rows
        rows = u / (kernel @ columns[..., None]).squeeze(2)
        columns = v / (rows[:, None] @ kernel).squeeze(1)
        if (rows - before).abs().mean() < STILL:
            break
    plan = rows[..., None] * kernel * columns[:, None]
    return plan[:, :-1, :-1] if mass < 1 else plan


def official_weights(weights: Tensor) -> Tensor:
    """Normalise as the published codes do, to a sum slightly below 1."""
    return weights / (weights.sum(-1, keepdim=True) + 1e-5)
