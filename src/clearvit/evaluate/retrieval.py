"""Retrieval: ranking by descriptors against the same ranking re-ranked patch by patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.dense.features import spread
from clearvit.errors import ImageError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.retrieval_collection import Collection
from clearvit.evaluate.retrieval_config import RetrievalConfig, Weighing, comparison_name
from clearvit.evaluate.table import Result
from clearvit.progress import Progress
from clearvit.retrieval.describe import Settled, make_recipe, settle_marginal
from clearvit.retrieval.features import Features, collect_features
from clearvit.retrieval.guard import guard
from clearvit.retrieval.matching import Locals, Matching, match
from clearvit.retrieval.metrics import per_query_metrics

Floats = NDArray[np.float64]
SAMPLE = 200  # images that the guard judges a collection by
BLOCK = 256  # queries compared with the whole gallery at once


@dataclass(frozen=True)
class Lists:
    """The nearest of each query by descriptor."""

    queries: Tensor  # (Q,): numbers of the queries
    order: Tensor  # (Q, M): places in the gallery, best first
    similarity: Tensor  # (Q, M): cosines


def retrieve(
    backbone: Backbone,
    collection: Collection,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Rank by descriptors, and re-rank by every comparison that the options name."""
    options = config.retrieval
    comparisons = list(options.comparisons()) if options.rerank else []
    features = collection_features(backbone, collection, config, progress)
    lists = nearest(features, collection, _asking(collection, config), options)
    base = measured(collection, lists.queries, lists.order, options)
    results = [Result("descriptors", 0, [base], partial(_summary, options=options))]
    for matching, marginal in comparisons:
        settled = settled_weights(backbone, marginal)
        structural, mass = _structural(features, collection, lists, matching, settled, options)
        for asked in options.weights:
            name = comparison_name(matching, settled if marginal == "auto" else marginal)
            if asked == "guard":
                weight = _guarded(features, collection, matching, settled)
                name += f", guard ({weight:.3g})"
            else:
                weight = float(asked)
                name += f", weight {weight:g}"
            order = reordered(lists, structural, weight)
            ours = measured(collection, lists.queries, order, options)
            better, worse = ours[:, [3]] > base[:, [3]], ours[:, [3]] < base[:, [3]]
            moved = mass.mean(1, keepdim=True).numpy()
            rows = np.concatenate([ours, base, better, worse, moved], axis=1)
            results.append(Result(name, 0, [rows], partial(_compared, options=options)))
    return results


def settled_weights(backbone: Backbone, marginal: Weighing) -> Settled:
    """Name the stored weights that a choice needs; DIML's are computed per pair from even ones."""
    return "uniform" if marginal == "cross" else settle_marginal(backbone, marginal)


def collection_features(
    backbone: Backbone, collection: Collection, config: EvaluateConfig, progress: Progress | None
) -> Features:
    """Describe all images of a collection under the marginals that the options name."""
    options = config.retrieval
    recipe = make_recipe(
        backbone, size=config.size, grid=options.grid, descriptor=options.descriptor
    )
    marginals = [settled_weights(backbone, marginal) for marginal in options.marginals]
    return collect_features(
        backbone,
        collection.pictures,
        recipe,
        marginals,
        batch=config.batch,
        cache=config.cache,
        progress=progress,
    )


def _asking(collection: Collection, config: EvaluateConfig) -> Tensor:
    return torch.tensor(spread(collection.queries, config.limit))


def nearest(
    features: Features, collection: Collection, queries: Tensor, options: RetrievalConfig
) -> Lists:
    """Find as many of the nearest as re-ranking and the measures look at."""
    others = len(collection.gallery) - int(collection.among)
    if others < 1:
        raise ImageError(f"'{collection.root}' holds one image; nothing can be found.")
    right = int(collection.right(queries).max())
    depth = min(others, max(options.rerank, right + 1, *options.recall))
    gallery = features.descriptors[: len(collection.gallery)]
    orders, values = [], []
    for block in queries.split(BLOCK):
        places = torch.tensor([collection.place(int(q)) for q in block])
        similarity = features.descriptors[places] @ gallery.T
        if collection.among:
            similarity[torch.arange(len(block)), places] = -torch.inf
        found = similarity.sort(dim=1, descending=True, stable=True)
        orders.append(found.indices[:, :depth])
        values.append(found.values[:, :depth])
    return Lists(queries, torch.cat(orders), torch.cat(values))


def _structural(
    features: Features,
    collection: Collection,
    lists: Lists,
    matching: Matching,
    marginal: Settled,
    options: RetrievalConfig,
) -> tuple[Tensor, Tensor]:
    """Structural similarity of the first K of each list, (Q, K), and the mass moved, (Q, K)."""
    scores, masses = [], []
    for query, order in zip(lists.queries.tolist(), lists.order, strict=True):
        place = collection.place(query)
        asked = features.locals(marginal, slice(place, place + 1))
        found = match(asked, features.locals(marginal, order[: options.rerank]), matching)
        scores.append(found.score)
        masses.append(found.mass)
    return torch.stack(scores), torch.stack(masses)


def _guarded(
    features: Features, collection: Collection, matching: Matching, marginal: Settled
) -> float:
    """Ask the guard, which sees the gallery and no label."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(collection.gallery), generator=generator)[:SAMPLE]
    images: Locals = features.locals(marginal, chosen)
    return guard(features.descriptors[chosen], images, method=matching).weight


def reordered(lists: Lists, structural: Tensor, weight: float) -> Tensor:
    """Sort the first K by global + weight x structural; ties and the rest keep their order."""
    count = structural.shape[1]
    score = lists.similarity[:, :count] + weight * structural
    score = torch.where(score.isnan(), -torch.inf, score)
    head = score.sort(dim=1, descending=True, stable=True).indices
    return torch.cat([lists.order.gather(1, head), lists.order[:, count:]], 1)


def measured(
    collection: Collection, queries: Tensor, order: Tensor, options: RetrievalConfig
) -> Floats:
    """Score ranked lists, one row per query.

    Returns:
        (Q, 8 + k): whether the query has an answer; its P@1, RP and MAP@R by the standard
        convention; 1 and the same by DIML's, all NaN-free; and whether each Recall@k is met.
    """
    relevant = collection.relevant(queries, order)
    right = collection.right(queries)
    standard = per_query_metrics(relevant, right)
    diml = per_query_metrics(relevant, right + 1)
    met = [relevant[:, :k].any(1) for k in options.recall]
    columns = [right > 0, *standard.T, torch.ones(len(queries)), *diml.T, *met]
    return torch.stack([column.double() for column in columns], dim=1).numpy()


NAMES = ("P@1", "RP", "MAP@R")


def _summary(sums: Floats, options: RetrievalConfig) -> Mapping[str, Floats]:
    """Means in percent; the standard convention leaves out queries without an answer."""
    answerable, every = (100 / np.maximum(sums[..., i], 1) for i in (0, 4))
    found = {name: answerable * sums[..., 1 + i] for i, name in enumerate(NAMES)}
    found |= {f"R@{k}": answerable * sums[..., 8 + i] for i, k in enumerate(options.recall)}
    return found | {f"{name} (diml)": every * sums[..., 5 + i] for i, name in enumerate(NAMES)}


def _compared(sums: Floats, options: RetrievalConfig) -> Mapping[str, Floats]:
    """The same, and how it differs from the ranking by descriptors on the same queries."""
    width = 8 + len(options.recall)
    ours, base = _summary(sums[..., :width], options), _summary(sums[..., width:], options)
    differences = {f"Δ {name}": ours[name] - base[name] for name in NAMES}
    won, lost, mass = np.moveaxis(sums[..., 2 * width :], -1, 0) / np.maximum(sums[..., 4], 1)
    return {**ours, **differences, "won": 100 * won, "lost": 100 * lost, "mass": mass}


def collection_facts(collection: Collection) -> dict[str, object]:
    """Facts about a collection for the protocol."""
    facts: dict[str, object] = {"layout": collection.layout, "gallery": len(collection.gallery)}
    if collection.among:
        facts["classes"] = len(set(collection.labels))
    return facts | {"queries": collection.queries}
