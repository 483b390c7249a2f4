"""Rank by descriptors, then re-rank the first K by comparing patches.

The three steps of a search are `find_nearest`, the gate (`clearvit.retrieval.gate`) and
`rerank_nearest`. `Index.search` runs them on an index, `search_features` on collected features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.gate import GateDecision
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match

CHAMFER = Matching()
BLOCK = 256  # queries compared with the whole gallery at once


@dataclass(frozen=True)
class Nearest:
    """The nearest of Q queries by descriptor, best first."""

    order: Tensor  # (Q, M): items of the gallery
    similarity: Tensor  # (Q, M): cosines


@dataclass(frozen=True)
class RerankResult:
    """Ranked lists of Q queries, and the two terms of the score of their first K items.

    `candidates` and what follows it are in the order of the ranking by descriptors.
    """

    order: Tensor  # (Q, M): items from best to worst
    nearest: Nearest = field(repr=False)  # the lists before re-ranking
    patch_similarity: Tensor = field(repr=False)  # (Q, K); NaN if the weight is 0: not computed
    mass: Tensor = field(repr=False)  # (Q, K): fraction of the mass that transport moved
    valid: Tensor = field(repr=False)  # (Q, K) bool: see MatchResult
    weight: float
    gate: GateDecision | None = None

    @property
    def candidates(self) -> Tensor:
        """The items that were compared patch by patch, (Q, K)."""
        return self.nearest.order[:, : self.patch_similarity.shape[1]]

    @property
    def global_similarity(self) -> Tensor:
        """Cosines of the descriptors of the candidates, (Q, K)."""
        return self.nearest.similarity[:, : self.patch_similarity.shape[1]]

    @property
    def score(self) -> Tensor:
        """Global + weight x patch similarity of the candidates, (Q, K)."""
        if self.weight == 0:
            return self.global_similarity
        return self.global_similarity + self.weight * self.patch_similarity

    @property
    def note(self) -> str:
        """Say in a sentence how the ranking came about."""
        if self.gate is not None:
            return self.gate.note
        return f"Global similarity + {self.weight:g} x patch similarity."

    def reweight(self, weight: float | GateDecision) -> RerankResult:
        """Rank the same candidates by another weight, without comparing patches again."""
        gate = weight if isinstance(weight, GateDecision) else None
        plain = _plain(weight)
        changed = replace(self, weight=plain, gate=gate)
        if plain == 0:
            return replace(changed, order=self.nearest.order)
        score = torch.where(changed.score.isnan(), -torch.inf, changed.score)
        head = score.sort(dim=1, descending=True, stable=True).indices
        rest = self.nearest.order[:, head.shape[1] :]
        return replace(changed, order=torch.cat([self.candidates.gather(1, head), rest], 1))


def find_nearest(
    queries: Tensor, gallery: Tensor, count: int, *, exclude: Tensor | None = None
) -> Nearest:
    """Find the items whose descriptors are nearest to each query.

    Args:
        queries: Unit descriptors, (Q, D).
        gallery: Unit descriptors, (N, D).
        count: How many items per query, at most N.
        exclude: An item that each query must not find, such as itself, (Q,); -1 for none.
    """
    orders, values = [], []
    for start in range(0, len(queries), BLOCK):
        similarity = queries[start : start + BLOCK] @ gallery.T
        if exclude is not None:
            own = exclude[start : start + BLOCK]
            row = torch.arange(len(own))[own >= 0]
            similarity[row, own[own >= 0]] = -torch.inf
        found = similarity.sort(dim=1, descending=True, stable=True)
        orders.append(found.indices[:, :count])
        values.append(found.values[:, :count])
    return Nearest(torch.cat(orders), torch.cat(values))


def rerank_nearest(
    nearest: Nearest,
    queries: LocalFeatures,
    gallery: LocalFeatures,
    *,
    matching: Matching = CHAMFER,
    weight: float | GateDecision = 1.0,
    top: int = 100,
) -> RerankResult:
    """Re-rank the first K of each list by global + weight x patch similarity.

    Ties keep the order of the descriptors, and so do the items after K. A pair whose patch
    similarity is not finite goes to the end of the K.

    Args:
        nearest: The lists.
        queries: Local features of the Q queries.
        gallery: Local features of the items that the lists name.
        matching: How patches are compared.
        weight: Weight of the patch similarity, or what the gate chose for the collection; with 0
            nothing is compared and the lists stay.
        top: How many items K to compare patch by patch.
    """
    plain = _plain(weight)
    near = nearest.similarity[:, :top]
    close = torch.full_like(near, torch.nan)
    mass, valid = torch.ones_like(near), torch.ones_like(near, dtype=torch.bool)
    if plain > 0 and near.shape[1]:
        for i, items in enumerate(nearest.order[:, :top]):
            found = match(queries[i : i + 1], gallery[items], matching)
            close[i], mass[i], valid[i] = found.score, found.mass, found.valid
    return RerankResult(nearest.order, nearest, close, mass, valid, plain).reweight(weight)


def rerank(
    global_similarity: Tensor,
    queries: LocalFeatures,
    gallery: LocalFeatures,
    *,
    matching: Matching = CHAMFER,
    weight: float | GateDecision = 1.0,
    top: int = 100,
) -> RerankResult:
    """Rank by global similarity and re-rank the first K by global + weight x patch similarity.

    Args:
        global_similarity: Of Q queries and M items, (Q, M); -inf for items that must not be
            found, such as the query itself: they end the list.
        queries: Local features of the Q queries.
        gallery: Local features of the M items.
        matching: How patches are compared.
        weight: As in `rerank_nearest`.
        top: How many items K to compare patch by patch.
    """
    if global_similarity.shape != (len(queries), len(gallery)):
        raise ModelError(
            f"global similarity is {tuple(global_similarity.shape)} for {len(queries)} queries and"
            f" {len(gallery)} items; it must be (queries, items)."
        )
    if top < 1:
        raise ModelError(f"top is {top}; compare 1 item or more.")
    ranked = global_similarity.sort(dim=1, descending=True, stable=True)
    nearest = Nearest(ranked.indices, ranked.values)
    return rerank_nearest(nearest, queries, gallery, matching=matching, weight=weight, top=top)


def _plain(weight: float | GateDecision) -> float:
    plain = weight.weight if isinstance(weight, GateDecision) else float(weight)
    if not 0 <= plain < torch.inf:
        raise ModelError(f"weight is {plain:g}; use 0 (ranking by descriptors) or more.")
    return plain
