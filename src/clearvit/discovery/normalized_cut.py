"""TokenCut: split the patches of an image by the normalized cut of their graph.

Wang et al., "Self-Supervised Transformers for Unsupervised Object Discovery using Normalized Cut",
CVPR 2022; the cut itself: Shi and Malik, PAMI 2000.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.discovery.boxes import GridObject, check_grid, connected_component, enclosing_box
from clearvit.errors import ModelError

NO_EDGE = 1e-5  # weight of a missing edge; keeps the graph connected


def tokencut(features: Tensor, grid: Sequence[int], *, tau: float = 0.2) -> GridObject:
    """Find the object of one image as one side of a normalized cut.

    Patches are connected where their cosine exceeds tau. The second eigenvector is split at its
    mean; the object is the connected part around its largest absolute value.

    Args:
        features: One row per patch, row by row, without prefix tokens, (N, C). Published: keys of
            the last block, heads side by side.
        grid: (H, W) in patches.
        tau: Smallest cosine of an edge, -1 to 1.
    """
    rows, columns = check_grid(features, grid)
    if not -1 <= tau <= 1:
        raise ModelError(f"tau is {tau}; a cosine lies between -1 and 1. The published value: 0.2.")
    unit = F.normalize(features.detach().float(), dim=1)
    edges = unit @ unit.T > tau
    others = edges.sum() - edges.diagonal().sum()
    degenerate = int(others) in (0, len(unit) * (len(unit) - 1))
    if degenerate:
        word = "All" if int(others) else "No"
        warnings.warn(
            f"{word} cosines exceed tau = {tau}: there is nothing to cut and the box is"
            " meaningless. Choose another tau, center the features, or use method='consensus'.",
            stacklevel=2,
        )
    vector = second_eigenvector(torch.where(edges, 1.0, NO_EDGE))
    seed = int(vector.abs().argmax())
    vector = vector if vector[seed] > vector.mean() else -vector
    mask = connected_component((vector > vector.mean()).view(rows, columns).cpu(), seed)
    score = contrast(edges.float(), mask)
    return GridObject(enclosing_box(mask), seed, mask, score, degenerate)


def second_eigenvector(affinity: Tensor) -> Tensor:
    """Solve (D - A) v = lambda D v for the second smallest lambda, (N, N) positive -> (N,).

    The sign, which the equation leaves open, is chosen so that the largest absolute value is
    positive.
    """
    root = affinity.sum(1).sqrt()
    normal = affinity / root[:, None] / root
    if len(affinity) < 2:
        return torch.zeros_like(root)
    _, vectors = torch.linalg.eigh(normal)
    vector: Tensor = vectors[:, -2] / root
    return vector if vector[vector.abs().argmax()] > 0 else -vector


def contrast(affinity: Tensor, mask: Tensor) -> float:
    """Mean affinity inside a mask (H, W) minus that from the mask to the rest."""
    inside = mask.flatten().to(affinity.device)
    if bool(inside.all()):
        return 0.0
    return float(affinity[inside][:, inside].mean() - affinity[inside][:, ~inside].mean())
