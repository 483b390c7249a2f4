"""Must patches re-rank, or do descriptors do it for less? Patch matching against its cheap rivals.

    python benchmarks/rerank_methods.py [--models demo NAME ...] [--sets cars flowers ...]
    python benchmarks/rerank_methods.py --page          # only write the page

Rows: descriptors; query expansion and k-reciprocal neighbors; Chamfer, transport, and partial
transport with a mass of 0.7 and with the automatic one, on the final tokens as the papers do, and
on whitened values of the last block. The number of neighbors, or the weight of the patch similarity
(0 is allowed), is chosen on the even classes (queries, for places) by MAP@R; the table shows the
odd ones. Features are those of facets.py, in its --work; every finished table is kept.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.retrieval.config import Matching
from clearvit.retrieval.facets.facet import FINAL
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.neighbor_reranking import score_by_neighbors
from clearvit.retrieval.ranking_metrics import per_query_metrics
from clearvit.retrieval.reranking import Nearest, rerank_nearest
from clearvit.retrieval.whitening import Whitening
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from facets import CHANNELS, MODELS, TOP, Collection, collect, split
from render import render

SETS = ("cars", "flowers", "corridor", "imagenet100")
METRICS = ("P@1", "MAP@R", "R@5", "R@10")
RATIOS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 8.0)  # spread of the patch term over that of the cosines
COUNTS = {"query expansion": (2, 3, 5, 10), "k-reciprocal": (5, 10, 20)}
BY = {"query expansion": "expansion", "k-reciprocal": "reciprocal"}
MATCHINGS = {
    "Chamfer": Matching("chamfer"),
    "transport": Matching("transport"),
    "transport, mass 0.7": Matching("transport", mass=0.7),
    "transport, mass auto": Matching("transport", mass="auto"),
}
Scores = dict[str, Tensor]  # by setting: (Q, metrics) of all queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("facets-work"))
    parser.add_argument("--limit", type=int, default=120, help="queries of each set, evenly")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = read_result("rerank-methods")
    for model in [] if options.page else options.models:
        backbone = cv.load(find_model(model), size=options.size).in_precision("auto")
        for name in options.sets:
            start = time.perf_counter()
            results[f"{model} {name}"] = measure(backbone, model, name, options)
            write_result("rerank-methods", results, data=[name], models=[model], seeds=[0])
            print(f"{model} {name}: {time.perf_counter() - start:.0f} s", flush=True)
    render("rerank_methods")


def measure(
    backbone: cv.Backbone, model: str, name: str, options: argparse.Namespace
) -> dict[str, Any]:
    whole = collect(backbone, model, name, options)
    chosen = np.linspace(0, len(whole.queries) - 1, min(options.limit, len(whole.queries)))
    one = Collection(whole.data, whole.sample, whole.raw, whole.queries[chosen.round().astype(int)])
    odd = split(one)
    labels = np.asarray(one.data.labels)[one.queries[odd]] if one.data.queries_in_gallery else None
    found: dict[str, tuple[str, Tensor]] = {}
    cosines = one.cosines(None).sort(dim=1, descending=True, stable=True)
    nearest = Nearest(cosines.indices, cosines.values)
    base = {"": score(one, nearest.order)}
    found["descriptors"] = pick(base, odd)
    for title, counts in COUNTS.items():
        tried = {f"{n} neighbors": score(one, by_neighbors(one, nearest, title, n)) for n in counts}
        found[title] = pick(base | tried, odd)
    for facet, images in local_features(one).items():
        for title, matching in MATCHINGS.items():
            if facet == "final tokens" or title in ("Chamfer", "transport"):
                tried = by_patches(one, nearest, images, matching)
                found[f"{title}, {facet}"] = pick(tried, odd)
    return {
        "queries": int(odd.sum()),
        "top": TOP,
        "date": time.strftime("%Y-%m-%d"),
        "rows": {
            title: {"setting": setting} | summary(mine, found["descriptors"][1], labels)
            for title, (setting, mine) in found.items()
        },
    }


def local_features(one: Collection) -> dict[str, LocalFeatures]:
    """Patches of all images: final tokens, and values of the last block as an index keeps them."""
    values = one.facets[0]
    fitted = Whitening.fit(one.raw.patches[values][: one.gallery].float(), channels=CHANNELS)
    return {
        "final tokens": one.local_features(FINAL, None),
        "whitened values": one.local_features(values, fitted),
    }


def by_patches(
    one: Collection, nearest: Nearest, images: LocalFeatures, matching: Matching
) -> Scores:
    """Re-rank with every weight that may be chosen."""
    gallery = images[torch.arange(one.gallery)]
    found = rerank_nearest(nearest, images[one.rows], gallery, matching=matching, top=TOP)
    near, close = found.global_similarity, found.patch_similarity
    scale = near[near.isfinite()].std() / close[close.isfinite()].std()
    return {
        f"ratio {ratio:g}": score(one, found.reweight(float(ratio * scale)).order)
        for ratio in RATIOS
    }


def by_neighbors(one: Collection, nearest: Nearest, title: str, count: int) -> Tensor:
    """Re-rank the first TOP of each list by descriptors alone."""
    orders, units = [], one.raw.descriptors
    for query, order in zip(units[one.rows], nearest.order, strict=True):
        head = order[:TOP]
        by: Any = BY[title]
        better = score_by_neighbors(query, units[head], by, count, keep_first=False)
        better = better.argsort(descending=True, stable=True)
        orders.append(torch.cat([head[better], order[TOP:]]))
    return torch.stack(orders)


def score(one: Collection, order: Tensor) -> Tensor:
    """Give METRICS of each query in percent, (Q, 4)."""
    if one.data.queries_in_gallery:
        order = order[:, : one.gallery - 1]  # the query itself ends the list
    relevant = one.data.relevant(one.queries, order)
    found = per_query_metrics(relevant, one.data.count_positives(one.queries))
    recalls = [relevant[:, :k].any(1).double() for k in (5, 10)]
    return 100 * torch.stack([found[:, 0], found[:, 2], *recalls], 1)


def pick(tried: Scores, odd: Tensor) -> tuple[str, Tensor]:
    """Choose a setting on the even half, by MAP@R; give its scores on the odd one."""
    best = max(tried, key=lambda name: float(tried[name][~odd, 1].mean()))
    return best or ("" if len(tried) == 1 else "none"), tried[best][odd]


def summary(ours: Tensor, base: Tensor, labels: Any) -> dict[str, Any]:
    return {
        metric: {
            "value": asdict(bootstrap(ours[:, i], groups=labels)),
            "difference": asdict(bootstrap(ours[:, i] - base[:, i], groups=labels)),
        }
        for i, metric in enumerate(METRICS)
    }


if __name__ == "__main__":
    main()
