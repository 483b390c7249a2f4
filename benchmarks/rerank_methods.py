"""Must patches re-rank, or do descriptors do it for less? Patch matching against its cheap rivals.

    python benchmarks/rerank_methods.py [--models demo NAME ...] [--sets cars flowers ...]

Rows: descriptors, query expansion, k-reciprocal neighbors, Chamfer, transport, partial transport
with a mass of 0.7 and with the automatic one. The number of neighbors, or the weight of the patch
similarity (0 is allowed), is chosen on the even classes (queries, for places) by MAP@R; the table
shows the odd ones. Models in CLEARVIT_WEIGHTS are found by name. Every finished part is kept in
--work, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.evaluation.retrieval_task import score_ranking
from clearvit.probes.features import select_evenly
from clearvit.retrieval.collected_features import CollectedFeatures, collect_features
from clearvit.retrieval.config import IndexConfig, Matching
from clearvit.retrieval.image_features import make_spec
from clearvit.retrieval.neighbor_reranking import score_by_neighbors
from clearvit.retrieval.reranking import Nearest, find_nearest, rerank_nearest
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

TOP = 50
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0)
COUNTS = {"expansion": (2, 3, 5, 10), "reciprocal": (5, 10, 20)}
MATCHINGS = {
    "Chamfer": Matching("chamfer"),
    "transport": Matching("transport"),
    "transport, mass 0.7": Matching("transport", mass=0.7),
    "transport, mass auto": Matching("transport", mass="auto"),
}
P1, MAP = 1, 3  # columns of `score_ranking`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo"])
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--sets", nargs="+", default=["cars", "flowers", "corridor", "imagenet100"])
    parser.add_argument("--limit", type=int, default=200, help="queries of each set")
    parser.add_argument("--work", type=Path, default=Path("retrieval-work"))
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    results = read_result("rerank-methods")
    for model in options.models:
        backbone = None
        for name in options.sets:
            key = f"{name}, {model}"
            if key in results:
                continue
            backbone = backbone or cv.load(find_model(model), size=224)
            results[key] = measure(backbone, options.data / name, options)
            results[key]["date"] = time.strftime("%Y-%m-%d")
            used, models = options.sets, options.models
            write_result("rerank-methods", results, data=used, seeds=[0], models=models)
            print(key, json.dumps(results[key])[:300], flush=True)
    render("rerank_methods")


def measure(backbone: cv.Backbone, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dataset = read_retrieval(folder)
    spec = make_spec(backbone, IndexConfig(size=224))
    kind = spec.patch_weights
    cache = options.work / "features"
    features = collect_features(backbone, dataset.sources, spec, [kind], cache=cache)
    queries = torch.tensor(select_evenly(dataset.num_queries, options.limit))
    rows = torch.tensor([dataset.query_index(int(q)) for q in queries])
    nearest = nearest_of(features, dataset, rows)
    labels = torch.tensor(dataset.labels)[queries] if dataset.labels else queries
    half = (labels % 2).bool().numpy()  # True: reported

    def score(order: Tensor) -> np.ndarray:
        return score_ranking(dataset, queries, order, (5,))

    base = score(nearest.order)
    found = {"descriptors": row(base, base, half, "")}
    for by, counts in COUNTS.items():
        scored = {
            f"{n} neighbors": score(by_neighbors(features, nearest, rows, by, n)) for n in counts
        }
        found[by] = chosen_row(scored, base, half)
    images = features.local_features(kind)
    for name, matching in MATCHINGS.items():
        compared = rerank_nearest(nearest, images[rows], images, matching=matching, top=TOP)
        scored = {f"weight {w:g}": score(compared.reweight(w).order) for w in WEIGHTS}
        found[name] = chosen_row(scored, base, half)
        found[name]["mass"] = float(compared.mass.mean())
        found[f"{name}, weight 1"] = row(scored["weight 1"], base, half, "weight 1")
    return {"queries": int(half.sum()), "top": TOP, "rows": found}


def nearest_of(features: CollectedFeatures, dataset: RetrievalDataset, rows: Tensor) -> Nearest:
    gallery = len(dataset.gallery)
    own = torch.where(rows < gallery, rows, -1)
    count = min(gallery - 1, 200)
    return find_nearest(
        features.descriptors[rows], features.descriptors[:gallery], count, exclude=own
    )


def by_neighbors(
    features: CollectedFeatures, nearest: Nearest, rows: Tensor, by: Any, count: int
) -> Tensor:
    """Re-rank the first TOP of each list by descriptors alone."""
    orders = []
    for query, order in zip(features.descriptors[rows], nearest.order, strict=True):
        head = order[:TOP]
        score = score_by_neighbors(query, features.descriptors[head], by, count)
        better = score.argsort(descending=True, stable=True)
        orders.append(torch.cat([head[better], order[TOP:]]))
    return torch.stack(orders)


def chosen_row(scored: dict[str, np.ndarray], base: np.ndarray, half: np.ndarray) -> dict[str, Any]:
    """Choose a setting on one half, by MAP@R, and report it on the other."""
    value: Callable[[str], float] = lambda name: float(scored[name][~half, MAP].mean())  # noqa: E731
    best = max(scored, key=value)
    return row(scored[best], base, half, best)


def row(ours: np.ndarray, base: np.ndarray, half: np.ndarray, setting: str) -> dict[str, Any]:
    content: dict[str, Any] = {"setting": setting}
    for name, column in (("P@1", P1), ("MAP@R", MAP)):
        one, other = 100 * ours[half, column], 100 * base[half, column]
        for label, values in ((name, one), (f"Δ {name}", one - other)):
            interval = bootstrap(values)
            content[label] = [interval.mean, interval.low, interval.high]
    return content


if __name__ == "__main__":
    main()
