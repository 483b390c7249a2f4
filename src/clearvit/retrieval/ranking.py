"""The two stages of a search: nearest descriptors, then the first of them patch by patch."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import torch

from clearvit.errors import StoreError
from clearvit.retrieval.guard import Guarded, guard
from clearvit.retrieval.hits import Hit, Hits, Query
from clearvit.retrieval.matching import Matching
from clearvit.retrieval.rerank import rerank_list
from clearvit.retrieval.store import Rows

if TYPE_CHECKING:
    from clearvit.retrieval.index import Index

SAMPLE = 200  # images that the guard judges a collection by
STALE = 0.1  # share by which a collection may grow or shrink before it is judged anew
PLAIN = "Ranked by the similarity of descriptors."


def ranked(
    index: Index,
    query: Query,
    *,
    k: int,
    rerank: int,
    where: str | None,
    weight: float | None,
    exact: bool,
    matching: Matching,
) -> Hits:
    """Search by descriptor and re-rank the first `rerank` hits; see `Index.search`."""
    assert query.described is not None
    chosen: float | Guarded = 0.0
    if rerank:
        chosen = decided(index, matching) if weight is None else float(weight)
    plain = chosen.weight if isinstance(chosen, Guarded) else chosen
    rows = index.store.nearest(
        query.described.descriptors[0],
        max(k, rerank),
        where=where,
        heavy=plain != 0,
        exact=exact,
    )
    order, structural = _reranked(index, query, rows, rerank, chosen, matching)
    hits = []
    for rank, place in enumerate(order[:k], 1):
        near, close = float(rows.similarity[place]), structural.get(place)
        score = near if close is None else near + plain * close
        entry = rows.entries[place]
        used = 0.0 if close is None else plain
        hits.append(Hit(rank, score, near, close, used, entry, query, matching, index))
    return Hits(hits, query=query, note=_note(index, rerank, chosen))


def decided(index: Index, matching: Matching) -> Guarded:
    """Ask the guard whether structure helps on this collection, or recall what it said."""
    key, count = repr(matching), len(index)
    if not count:
        return Guarded(0.0, "The index is empty.")
    known = index.store.recall(key)
    if known is not None:
        content = json.loads(known)
        if abs(count - content["images"]) <= STALE * content["images"]:
            return Guarded(content["weight"], content["note"], content["agreement"])
    names = index.names
    generator = torch.Generator().manual_seed(0)
    picked = torch.randperm(len(names), generator=generator)[:SAMPLE].tolist()
    described = index.store.fetch([names[i] for i in picked]).described
    assert described is not None
    found = guard(described.descriptors, described.locals(index.recipe), method=matching)
    content = {"images": count, "weight": found.weight, "note": found.note}
    with contextlib.suppress(StoreError):  # who may only read decides again next time
        index.store.remember(key, json.dumps({**content, "agreement": found.agreement}))
    return found


def _reranked(
    index: Index,
    query: Query,
    rows: Rows,
    rerank: int,
    weight: float | Guarded,
    matching: Matching,
) -> tuple[list[int], dict[int, float]]:
    """Places of the hits from best to worst, and the structural similarity where it was used."""
    # The database leaves the order of equals open.
    near = rows.similarity.tolist()
    order = sorted(range(len(near)), key=lambda i: (-near[i], rows.entries[i].name))
    if rows.described is None or not order:
        return order, {}
    assert query.described is not None
    first = torch.tensor(order[:rerank])
    found = rerank_list(
        rows.similarity[first],
        query.described.locals(index.recipe),
        rows.described.locals(index.recipe)[first],
        method=matching,
        weight=weight,
    )
    structural = dict(zip(first.tolist(), found.structural[0].tolist(), strict=True))
    return [*first[found.order[0]].tolist(), *order[rerank:]], structural


def _note(index: Index, rerank: int, weight: float | Guarded) -> str:
    if not rerank:
        note = PLAIN
    elif isinstance(weight, Guarded):
        note = weight.note
    elif weight == 0:
        note = f"{PLAIN} Structure has weight 0."
    else:
        note = f"The first {rerank} by global similarity + {weight:g} x structural similarity."
    return f"{note} {index.note}".strip()
