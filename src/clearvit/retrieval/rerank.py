"""Rank by global similarity, then look closer at the first K."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.retrieval.guard import Guarded
from clearvit.retrieval.matching import Locals, Matching, Method, match


@dataclass(frozen=True)
class Reranked:
    """Ranked lists of Q queries, and the two terms of the score of their first K items.

    `candidates` and what follows it are in the order of the global ranking.
    """

    order: Tensor  # (Q, M): items from best to worst
    candidates: Tensor = field(repr=False)  # (Q, K): the items that were looked at closely
    score: Tensor = field(repr=False)  # (Q, K): global + weight x structural
    global_similarity: Tensor = field(repr=False)  # (Q, K)
    structural: Tensor = field(repr=False)  # (Q, K); NaN if the weight is 0: not computed
    mass: Tensor = field(repr=False)  # (Q, K): share of the mass that transport moved
    sound: Tensor = field(repr=False)  # (Q, K) bool: see Matched
    weight: float
    guard: Guarded | None = None

    @property
    def note(self) -> str:
        """Say in a sentence how the ranking came about."""
        if self.guard is not None:
            return self.guard.note
        return f"Global similarity + {self.weight:g} x structural similarity."


def rerank(
    global_similarity: Tensor,
    queries: Tensor | Locals,
    gallery: Tensor | Locals,
    *,
    method: Method | Matching = "transport",
    weight: float | Guarded = 1.0,
    top: int = 100,
) -> Reranked:
    """Rank by global similarity and re-rank the first K by global + weight x structural.

    Ties keep the global order, and so do the items after K. A pair whose structural similarity
    is not finite goes to the end of the K. Any other depth ranks its own list anew.

    Args:
        global_similarity: Of Q queries and M items, (Q, M); -inf for items that must not be
            found, such as the query itself: they end the list.
        queries: Unit local vectors of the queries, (Q, R, C), or these with weights.
        gallery: Unit local vectors of the items, (M, R, C), or these with weights. To re-rank
            lists that a search has found, see `rerank_list`.
        method: "transport", "mutual" (mutually nearest patches), "chamfer", or with options.
        weight: Of the structural term, or what `guard` chose for the collection; with 0 the global
            ranking is returned at once.
        top: How many items K to look at.
    """
    queries, gallery = _as_locals(queries), _as_locals(gallery)
    if global_similarity.shape != (len(queries), len(gallery)):
        raise ModelError(
            f"global similarity is {tuple(global_similarity.shape)} for {len(queries)} queries and"
            f" {len(gallery)} items; it must be (queries, items)."
        )
    if top < 1:
        raise ModelError(f"top is {top}; look at 1 item or more.")
    ranked = global_similarity.sort(dim=1, descending=True, stable=True)
    count = min(top, len(gallery))
    rows = [
        rerank_list(
            values[:count], queries[i : i + 1], gallery[order[:count]], method=method, weight=weight
        )
        for i, (values, order) in enumerate(zip(ranked.values, ranked.indices, strict=True))
    ]
    head = torch.cat([row.order for row in rows])
    candidates = ranked.indices[:, :count]
    order = torch.cat([candidates.gather(1, head), ranked.indices[:, count:]], 1)
    stacked = {
        name: torch.cat([getattr(row, name) for row in rows])
        for name in ("score", "global_similarity", "structural", "mass", "sound")
    }
    plain = weight.weight if isinstance(weight, Guarded) else float(weight)
    guard = weight if isinstance(weight, Guarded) else None
    return Reranked(order=order, candidates=candidates, weight=plain, guard=guard, **stacked)


def rerank_list(
    global_similarity: Tensor,
    query: Tensor | Locals,
    candidates: Tensor | Locals,
    *,
    method: Method | Matching = "transport",
    weight: float | Guarded = 1.0,
) -> Reranked:
    """Re-rank the list of one query, as a search returns it.

    Args:
        global_similarity: Of the K candidates, best first, (K,).
        query: Unit local vectors, (R, C) or (1, R, C), or these with weights.
        candidates: Unit local vectors, (K, R, C), or these with weights.
        method: See `rerank`.
        weight: See `rerank`.

    Returns:
        Lists of one query, Q = 1; `order` holds places in the given list, 0..K-1.
    """
    query, candidates = _as_locals(query), _as_locals(candidates)
    matching = method if isinstance(method, Matching) else Matching(method)
    plain = weight.weight if isinstance(weight, Guarded) else float(weight)
    if not 0 <= plain < torch.inf:
        raise ModelError(f"weight is {plain:g}; use 0 (global ranking) or more.")
    places = torch.arange(len(candidates), device=global_similarity.device)[None]
    structural = torch.full_like(global_similarity, torch.nan)
    mass, sound = torch.ones_like(structural), torch.ones_like(structural, dtype=torch.bool)
    score, order = global_similarity, places
    if plain > 0 and len(candidates):
        matched = match(query, candidates, matching)
        structural, mass, sound = matched.score, matched.mass, matched.sound
        score = global_similarity + plain * structural
        comparable = torch.where(score.isnan(), -torch.inf, score)
        order = comparable.sort(descending=True, stable=True).indices[None]
    return Reranked(
        order=order,
        candidates=places,
        score=score[None],
        global_similarity=global_similarity[None],
        structural=structural[None],
        mass=mass[None],
        sound=sound[None],
        weight=plain,
        guard=weight if isinstance(weight, Guarded) else None,
    )


def _as_locals(images: Tensor | Locals) -> Locals:
    if isinstance(images, Locals):
        return images
    return Locals(images[None] if images.ndim == 2 else images)
