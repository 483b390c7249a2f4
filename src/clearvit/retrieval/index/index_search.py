"""The steps of a search in an index: the gate, nearest descriptors, patch-level re-ranking."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import torch

from clearvit.errors import StoreError
from clearvit.retrieval.config import Matching, SearchConfig
from clearvit.retrieval.gate import GateDecision, gate_reranking, sample_gate
from clearvit.retrieval.index.hits import Hit, Hits, Query
from clearvit.retrieval.index.store import Rows, Store
from clearvit.retrieval.neighbor_reranking import score_by_neighbors
from clearvit.retrieval.reranking import Nearest, rerank_nearest

STALE = 0.1  # fraction by which a collection may grow or shrink before the gate decides anew
RERANKED = 100  # images, where the index chose that patches are compared
CHOSEN = Matching("chamfer")  # how, if it did
NEIGHBOR_NOTES = {
    "expansion": "the similarity with the query and its nearest images together",
    "reciprocal": "the neighbors that they share with the query (k-reciprocal)",
}
BY_DESCRIPTORS = "Ranked by the similarity of descriptors."


def search_store(store: Store, query: Query, config: SearchConfig) -> Hits:
    """Search by descriptor and re-rank the first `config.rerank` hits; see `Index.search`."""
    assert query.features is not None
    config = _as_chosen(store, config)
    depth = config.rerank or 0
    if depth and config.rerank_by != "patches":
        return _search_by_neighbors(store, query, config, depth)
    weight: float | GateDecision = 0.0
    if depth:
        weight = decide_gate(store, config.matching) if config.weight is None else config.weight
    plain = weight.weight if isinstance(weight, GateDecision) else weight
    rows = store.nearest(
        query.features.descriptors[0],
        max(config.k, depth),
        where=config.where,
        with_features=plain != 0,
        exact=config.exact,
    )
    order, patch_similarity = _rerank_rows(store, query, rows, config, weight)
    hits = []
    for rank, row in enumerate(order[: config.k], 1):
        near, close = float(rows.similarity[row]), patch_similarity.get(row)
        score = near if close is None else near + plain * close
        used = 0.0 if close is None else plain
        entry = rows.entries[row]
        hits.append(Hit(rank, score, near, close, used, entry, query, config.matching, store))
    return Hits(hits, query=query, note=f"{_note(depth, weight)} {query.note}".strip())


def _as_chosen(store: Store, config: SearchConfig) -> SearchConfig:
    """Fill in what was chosen for the collection when it was indexed, where nothing is asked."""
    weight = store.spec.weight
    if config.rerank is None and config.rerank_by != "patches":
        return replace(config, rerank=RERANKED)
    if config.rerank is None:
        if weight == 0 and config.weight is None:
            return replace(config, rerank=0)
        used = weight if config.weight is None else config.weight
        return replace(config, rerank=RERANKED, weight=used, method="chamfer")
    if config.weight is None and weight > 0 and config.matching == CHOSEN:
        return replace(config, weight=weight)
    return config


def _search_by_neighbors(store: Store, query: Query, config: SearchConfig, depth: int) -> Hits:
    """Search by descriptor and re-rank the first `depth` by descriptors alone."""
    assert query.features is not None
    asked = query.features.descriptors[0]
    rows = store.nearest(
        asked,
        max(config.k, depth),
        where=config.where,
        with_features=True,
        exact=config.exact,
    )
    near = rows.similarity.tolist()
    order = sorted(range(len(near)), key=lambda i: (-near[i], rows.entries[i].name))
    head, tail = order[:depth], order[depth:]
    scores = dict(zip(order, (near[i] for i in order), strict=True))
    if head and rows.features is not None:
        found = score_by_neighbors(
            asked, rows.features.descriptors[head], config.rerank_by, config.neighbors
        )
        scores |= dict(zip(head, found.tolist(), strict=True))
        head = [head[i] for i in found.argsort(descending=True, stable=True).tolist()]
    hits = [
        Hit(rank, scores[i], near[i], None, 0.0, rows.entries[i], query, config.matching, store)
        for rank, i in enumerate([*head, *tail][: config.k], 1)
    ]
    note = f"The first {depth} re-ranked by {NEIGHBOR_NOTES[config.rerank_by]}."
    return Hits(hits, query=query, note=f"{note} {query.note}".strip())


def decide_gate(store: Store, matching: Matching) -> GateDecision:
    """Ask the gate whether re-ranking helps on this collection, or read what it decided before."""
    key, names = repr(matching), sorted(store.entries())
    if not names:
        return GateDecision(0.0, "The index is empty.")
    known = store.load_decision(key)
    if known is not None:
        content = json.loads(known)
        if abs(len(names) - content["images"]) <= STALE * content["images"]:
            return GateDecision(content["weight"], content["note"])
    features = store.fetch([names[i] for i in sample_gate(len(names)).tolist()]).features
    assert features is not None
    local_features = features.local_features(store.spec)
    decision = gate_reranking(features.descriptors, local_features, matching)
    content = {"images": len(names), "weight": decision.weight, "note": decision.note}
    with contextlib.suppress(StoreError):  # who may only read decides again next time
        store.save_decision(key, json.dumps(content))
    return decision


def _rerank_rows(
    store: Store, query: Query, rows: Rows, config: SearchConfig, weight: float | GateDecision
) -> tuple[list[int], dict[int, float]]:
    """Rows from best to worst, and the patch similarity of those that were compared."""
    # The database leaves the order of equals open.
    near = rows.similarity.tolist()
    order = sorted(range(len(near)), key=lambda i: (-near[i], rows.entries[i].name))
    if rows.features is None or query.features is None or not order:
        return order, {}
    listed = torch.tensor([order])
    found = rerank_nearest(
        Nearest(listed, rows.similarity[listed]),
        query.features.local_features(store.spec),
        rows.features.local_features(store.spec),
        matching=config.matching,
        weight=weight,
        top=config.rerank or 0,
    )
    close = found.patch_similarity[0].tolist()
    return found.order[0].tolist(), dict(zip(found.candidates[0].tolist(), close, strict=True))


def _note(rerank: int, weight: float | GateDecision) -> str:
    if not rerank:
        return BY_DESCRIPTORS
    if isinstance(weight, GateDecision):
        return weight.note
    if weight == 0:
        return f"{BY_DESCRIPTORS} The patch similarity has weight 0."
    return f"The first {rerank} by global similarity + {weight:g} x patch similarity."
