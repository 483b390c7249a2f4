"""LOST: one object per image by expanding a seed patch.

Simeoni et al., "Localizing Objects with Self-Supervised Transformers and no Labels", BMVC 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from clearvit.discovery.boxes import GridObject, check_grid, connected_component, enclosing_box
from clearvit.errors import ModelError

BLOCK = 256  # rows of the affinity in memory at a time
DEGENERATE = 0.999  # fraction of equal signs above which degrees are uninformative


def lost(features: Tensor, grid: Sequence[int], k: int = 100, *, bias: float = 0.0) -> GridObject:
    """Find the object of one image by seed expansion, as published.

    The affinity is A = F F^T + bias. The seed is the patch with the fewest positive affinities to
    others (its degree). Of the k patches of lowest degree, those with positive affinity to the
    seed vote; the object is the connected part around the seed where the sum of their affinities
    is positive. Ties of the degree are broken by the lower index, which the published code leaves
    open.

    Args:
        features: One row per patch, row by row, without prefix tokens, (N, C). Published: keys of
            the last block, heads side by side, not normalized.
        grid: (H, W) in patches.
        k: Number of patches that may vote; 100 for every N in the published code.
        bias: Added to every affinity; between -1 and 0 for features of unit norm.
    """
    rows, columns = check_grid(features, grid)
    if k < 1:
        raise ModelError(f"k is {k}; at least one patch must vote. The published value is 100.")
    features = features.detach().float() if features.dtype != torch.float64 else features.detach()
    degree = degrees(features, bias=bias)
    order = torch.argsort(degree, stable=True)
    seed = int(order[0])
    voters = order[:k]
    voters = voters[features[voters] @ features[seed] + bias > 0]
    # The sum of affinities to the voters is the affinity to their sum: no N x N matrix is needed.
    votes = features @ features[voters].sum(0) + bias * len(voters)
    mask = connected_component((votes > 0).view(rows, columns), seed)
    count = len(features)
    positive = float(degree.double().mean()) / max(count - 1, 1)
    degenerate = max(positive, 1 - positive) > DEGENERATE or not len(voters)
    if degenerate:
        warnings.warn(
            f"{100 * positive:.1f} % of the affinities are positive, so LOST cannot separate the"
            " patches and the box is meaningless. Center the features, pass a bias, or use"
            " method='consensus'.",
            stacklevel=2,
        )
    score = 1 - int(degree[seed]) / max(count, 1)
    return GridObject(enclosing_box(mask), seed, mask, score, degenerate)


def degrees(features: Tensor, *, bias: float = 0.0) -> Tensor:
    """Count for every patch the others with positive affinity, (N, C) -> (N,).

    The affinity is symmetric: only blocks on and above its diagonal are computed, one at a time.
    """
    count = len(features)
    features = features.detach()
    degree = torch.zeros(count, dtype=features.dtype, device=features.device)
    buffer = features.new_empty(min(BLOCK, count) * count)  # reused: allocating costs as much
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        block = buffer[: (stop - start) * (count - start)].view(stop - start, count - start)
        torch.mm(features[start:stop], features[start:].T, out=block)
        positive = block.gt_(-bias)
        degree[start:stop] += positive.sum(1) - positive.diagonal()  # not itself
        degree[stop:] += positive[:, stop - start :].sum(0)
    return degree.long()
