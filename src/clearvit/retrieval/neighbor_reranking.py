"""Re-ranking by descriptors alone: query expansion and k-reciprocal neighbors.

The cheap rivals of patch-level re-ranking. Query expansion with weights cosine^alpha follows
Radenovic, Tolias and Chum (2018); k-reciprocal re-ranking follows Zhong et al. (CVPR 2017), here
among a query and its K nearest, so that the cost does not grow with the collection.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.retrieval.config import RerankBy

ALPHA = 3.0
EXPANSION, RECIPROCAL = 5, 20  # neighbors by default
SMOOTHED = 6  # neighbors whose sets are averaged (k2), at most
KEPT = 0.3  # part of the plain distance in the k-reciprocal one (lambda)
SHARED = 2 / 3  # of a neighbor's own set that must be shared to take it in


def score_by_neighbors(
    query: Tensor,
    candidates: Tensor,
    by: RerankBy,
    neighbors: int | None = None,
    *,
    keep_first: bool = True,
) -> Tensor:
    """Score the K nearest images of a query by what their descriptors have in common.

    Args:
        query: Unit descriptor, (D,).
        candidates: Unit descriptors of its nearest images, the nearest first, (K, D).
        by: "expansion" or "reciprocal".
        neighbors: How many nearest images to look at; None for the default.
        keep_first: Give the nearest image the largest score. Neighbors tell a group from others,
            but not which of its images is the most similar one.

    Returns:
        (K,), the larger, the better: the cosine with the expanded query, or 1 - k-reciprocal
        distance.
    """
    if by == "expansion":
        near = candidates[: EXPANSION if neighbors is None else neighbors]
        scores = candidates @ expand_query(query, near)
    elif by == "reciprocal":
        images = torch.cat([query[None], candidates])
        count = RECIPROCAL if neighbors is None else neighbors
        scores = 1 - reciprocal_distances(images, count)[0, 1:]
    else:
        raise ModelError(f"rerank_by is '{by}'; descriptors re-rank by expansion or reciprocal.")
    if keep_first and len(scores):
        scores[:1] = scores.max()
    return scores


def expand_query(query: Tensor, near: Tensor, alpha: float = ALPHA) -> Tensor:
    """Add the nearest descriptors (n, D) to a query (D,), weighted by max(cosine, 0)^alpha."""
    weights = (near @ query).clamp(min=0).pow(alpha)
    return F.normalize(query + weights @ near, dim=0)


def reciprocal_distances(
    images: Tensor, neighbors: int, *, smoothed: int = SMOOTHED, kept: float = KEPT
) -> Tensor:
    """Compare images by the neighbors they share.

    Args:
        images: Unit descriptors, (M, D).
        neighbors: Size of the neighborhoods (k1).
        smoothed: How many nearest images average their neighborhoods (k2).
        kept: Part of the plain distance in the result (lambda).

    Returns:
        (1 - kept) x Jaccard distance + kept x plain distance, (M, M). The plain distance is the
        squared Euclidean one, divided by the largest of its row.
    """
    plain = (2 - 2 * images @ images.T).clamp(min=0).fill_diagonal_(0)
    plain = plain / plain.amax(1, keepdim=True).clamp(min=torch.finfo(plain.dtype).tiny)
    order = plain.argsort(dim=1, stable=True)
    mutual = _reciprocal(order, neighbors)
    half = _reciprocal(order, max(1, round(neighbors / 2)))
    shared = half.to(plain) @ mutual.to(plain).T  # (j, i): members of j's half set in i's set
    taken = mutual & (shared.T >= SHARED * half.sum(1)[None])
    members = mutual | (taken.to(plain) @ half.to(plain) > 0)
    sets = torch.where(members, (-plain).exp(), 0.0)
    sets = sets / sets.sum(1, keepdim=True)
    sets = sets[order[:, :smoothed]].mean(1)
    overlap = torch.stack([torch.minimum(one, sets).sum(1) for one in sets])
    return (1 - kept) * (1 - overlap / (2 - overlap)) + kept * plain


def _reciprocal(order: Tensor, count: int) -> Tensor:
    """Mark pairs that are among each other's nearest, the image itself included, (M, M) bool."""
    near = torch.zeros_like(order, dtype=torch.bool)
    near.scatter_(1, order[:, : count + 1], True)
    return near & near.T
