"""Retrieval: the ranking by descriptors against the same ranking re-ranked patch by patch.

Images are ranked by the functions that `Index.search` uses (`clearvit.retrieval`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.errors import ImageError
from clearvit.evaluation.config import ComparedConfig, RetrievalTaskConfig
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import Prepared
from clearvit.images import ImageSource
from clearvit.probes.features import select_evenly
from clearvit.progress import Progress
from clearvit.retrieval.collected_features import (
    CollectedFeatures,
    collect_features,
    gate_features,
    search_features,
)
from clearvit.retrieval.config import (
    Cross,
    IndexConfig,
    Matching,
    PatchWeights,
    ResolvedWeights,
    SearchConfig,
)
from clearvit.retrieval.image_features import make_spec, resolve_weights
from clearvit.retrieval.ranking_metrics import per_query_metrics

NAMES = ("P@1", "RP", "MAP@R")
CROSS: dict[str, Cross] = {
    "cross": "correlation",
    "cross-inverse": "inverse",
    "cross-minus": "minus",
    "cross-softmax": "softmax",
}


@dataclass(frozen=True)
class Comparison:
    """One way to compare images patch by patch."""

    matching: Matching
    patch_weights: ResolvedWeights  # those of the features; DIML's start from uniform ones
    name: str


def prepare(data: Path, config: RetrievalTaskConfig) -> Prepared:
    """Read the gallery and the queries."""
    dataset = read_retrieval(data, layout=config.layout, split=config.split)
    if len(dataset.gallery) - int(dataset.queries_in_gallery) < 1:
        raise ImageError(f"'{dataset.root}' holds one image; there is nothing to rank.")
    facts = {"layout": dataset.layout, "gallery": len(dataset.gallery)}
    if dataset.queries_in_gallery:
        facts["classes"] = len(set(dataset.labels))
    facts["queries"] = dataset.num_queries
    return Prepared(partial(_run, dataset=dataset, config=config), facts)


def list_comparisons(backbone: Backbone, config: ComparedConfig) -> Iterator[Comparison]:
    """List the ways to compare that the options name; only transport has masses."""
    for method, asked in product(config.methods, config.patch_weights):
        cross = CROSS.get(asked, "none")
        stored: ResolvedWeights = "uniform"
        if asked not in CROSS:
            stored = resolve_weights(backbone, cast(PatchWeights, asked))
        for mass in config.masses if method == "transport" else (1.0,):
            name = f"{method}, {stored if asked == 'auto' else asked}"
            name += "" if mass == 1 else f", mass {mass}"
            matching = Matching(method=method, mass=mass, cross=cross)
            yield Comparison(matching, stored, name)


def extract_compared(
    backbone: Backbone,
    sources: Sequence[ImageSource],
    comparisons: Sequence[Comparison],
    config: ComparedConfig,
    progress: Progress | None,
) -> CollectedFeatures:
    """Extract descriptors and patches with all patch weights that the comparisons need."""
    options = IndexConfig(size=config.size, grid=config.grid, descriptor=config.descriptor)
    spec = make_spec(backbone, options)
    kinds = [one.patch_weights for one in comparisons]
    found: CollectedFeatures = collect_features(
        backbone, sources, spec, kinds, batch=config.batch, cache=config.cache, progress=progress
    )
    return found


def _run(
    backbone: Backbone,
    progress: Progress | None,
    *,
    dataset: RetrievalDataset,
    config: RetrievalTaskConfig,
) -> list[Result]:
    comparisons = list(list_comparisons(backbone, config))
    features = extract_compared(backbone, dataset.sources, comparisons, config, progress)
    queries = torch.tensor(select_evenly(dataset.num_queries, config.limit))
    rows = torch.tensor([dataset.query_index(int(query)) for query in queries])
    gallery = len(dataset.gallery)
    depth = max(int(dataset.count_positives(queries).max()) + 1, *config.recall)
    base: Floats | None = None
    results: list[Result] = []
    for one in comparisons:
        options = {name: getattr(one.matching, name) for name in ("method", "mass", "cross")}
        search = SearchConfig(k=depth, rerank=config.rerank, weight=1.0, **options)
        found = search_features(features, rows, gallery, one.patch_weights, search)
        if base is None:
            base = score_ranking(dataset, queries, found.nearest.order, config.recall)
            summary = partial(_summarize, recall=config.recall)
            results.append(Result("descriptors", 0, [base], summary))
        if not config.rerank:
            break
        for asked in config.weights:
            if asked == "gate":
                weight = gate_features(features, gallery, one.patch_weights, one.matching)
                ranked, name = found.reweight(weight), f"gate ({weight.weight:.3g})"
            else:
                ranked, name = found.reweight(float(asked)), f"weight {asked:g}"
            ours = score_ranking(dataset, queries, ranked.order, config.recall)
            both = _join_rows(ours, base, found.mass)
            summary = partial(_summarize_difference, recall=config.recall)
            results.append(Result(f"{one.name}, {name}", 0, [both], summary))
    return results


def score_ranking(
    dataset: RetrievalDataset, queries: Tensor, order: Tensor, recall: Sequence[int]
) -> Floats:
    """Score ranked lists, one row per query.

    Returns:
        (Q, 8 + k): whether the query has a positive; its P@1, RP and MAP@R by the standard
        convention; 1 and the same by DIML's, all without NaN; and whether each Recall@k is met.
    """
    relevant = dataset.relevant(queries, order)
    positives = dataset.count_positives(queries)
    standard = per_query_metrics(relevant, positives)
    diml = per_query_metrics(relevant, positives + 1)
    met = [relevant[:, :k].any(1) for k in recall]
    columns = [positives > 0, *standard.T, torch.ones(len(queries)), *diml.T, *met]
    return torch.stack([column.double() for column in columns], dim=1).numpy()


def _join_rows(ours: Floats, base: Floats, mass: Tensor) -> Floats:
    """Put a ranking beside that by descriptors: both rows, MAP@R better, worse, mass moved."""
    better, worse = ours[:, [3]] > base[:, [3]], ours[:, [3]] < base[:, [3]]
    return np.concatenate([ours, base, better, worse, mass.mean(1, keepdim=True).numpy()], axis=1)


def _summarize(sums: Floats, recall: Sequence[int]) -> Mapping[str, Floats]:
    """Give means in percent; the standard convention leaves out queries without a positive."""
    answerable, every = (100 / np.maximum(sums[..., i], 1) for i in (0, 4))
    found = {name: answerable * sums[..., 1 + i] for i, name in enumerate(NAMES)}
    found |= {f"R@{k}": answerable * sums[..., 8 + i] for i, k in enumerate(recall)}
    return found | {f"{name} (diml)": every * sums[..., 5 + i] for i, name in enumerate(NAMES)}


def _summarize_difference(sums: Floats, recall: Sequence[int]) -> Mapping[str, Floats]:
    """Give the same, and the paired difference to the ranking by descriptors."""
    width = 8 + len(recall)
    ours, base = _summarize(sums[..., :width], recall), _summarize(sums[..., width:], recall)
    differences = {f"Δ {name}": ours[name] - base[name] for name in NAMES}
    won, lost, mass = np.moveaxis(sums[..., 2 * width :], -1, 0) / np.maximum(sums[..., 4], 1)
    return {**ours, **differences, "won": 100 * won, "lost": 100 * lost, "mass": mass}
