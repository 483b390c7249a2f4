"""Could an index choose k-reciprocal re-ranking by itself, without labels?

    python benchmarks/neighbor_choice.py [--models NAME ...] [--sets cars flowers ...]
    python benchmarks/neighbor_choice.py --held-out --data FOLDER --sets grocery gardens
    python benchmarks/render.py neighbor_choice     # the page from the JSON alone

What query expansion and k-reciprocal neighbors, with their default numbers of neighbors, change on
all queries of a set, also if the nearest image by descriptor stays first; and beside it what two
criteria without labels say of the same re-ranking: the stability of neighbors under crops, by which
`facet="auto"` chooses (crops.py), and the held-out channels of the gate. A criterion is of use
where its sign is that of the change. Features are those of facets.py, in its --work; grocery and
gardens (held_out_sets.py) were looked at by nobody before. Every finished table is kept.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import clearvit as cv
from clearvit.retrieval.config import RerankBy
from clearvit.retrieval.facets.choice import FOUND, NEAREST
from clearvit.retrieval.gate import sample_gate
from clearvit.retrieval.neighbor_reranking import score_by_neighbors
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from facets import MODELS, SETS, TOP, Collection, collect, scored
from render import render

METHODS: dict[str, RerankBy] = {"k-reciprocal": "reciprocal", "query expansion": "expansion"}
Order = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, its nearest, their descriptors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--held-out", action="store_true", help="mark the sets as held out")
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("facets-work"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.models:
        backbone = cv.load(find_model(model), size=options.size).in_precision("auto")
        for name in options.sets:
            key = f"{model} {name}"
            if key not in read_result("neighbor_choice"):
                found = measure(collect(backbone, model, name, options))
                known = read_result("neighbor_choice")
                known[key] = found | {"held out": options.held_out}
                listed = [] if options.held_out else [name]  # others lie outside the data by name
                write_result("neighbor_choice", known, data=listed, models=[model], seeds=[0])
                print(key, found, flush=True)
    render("neighbor_choice")


def measure(one: Collection) -> dict[str, Any]:
    """Give the change of every method by labels and by the two criteria, in percent."""
    labels = np.asarray(one.data.labels)[one.queries] if one.data.queries_in_gallery else None
    base = scored(one, rank(one, None))
    rows = {}
    plain, predicted = judge_crops(one, None), predict_channels(one, None)
    for title, by in METHODS.items():
        ours, first = (scored(one, rank(one, by, keep_first=keep)) for keep in (False, True))
        crops, channels = judge_crops(one, by), predict_channels(one, by)
        rows[title] = {
            "P@1": change(ours[:, 0], base[:, 0], labels),
            "MAP@R": change(ours[:, 1], base[:, 1], labels),
            "MAP@R, first kept": change(first[:, 1], base[:, 1], labels),
            "stability": change(crops[0], plain[0], None),
            "found": change(crops[1], plain[1], None),
            "criterion": change(crops[0] + FOUND * crops[1], plain[0] + FOUND * plain[1], None),
            "held-out channels": change(channels, predicted, None),
        }
    return {
        "queries": len(one.queries),
        "P@1": float(base[:, 0].mean()),
        "MAP@R": float(base[:, 1].mean()),
        "rows": rows,
        "date": time.strftime("%Y-%m-%d"),
    }


def change(ours: Tensor, base: Tensor, groups: Any) -> dict[str, float]:
    return asdict(bootstrap(ours - base, groups=groups))


def rank(one: Collection, by: RerankBy | None, *, keep_first: bool = False) -> Tensor:
    """Rank the gallery for every query, (Q, G); the query itself ends its list."""
    order = one.cosines(None).sort(dim=1, descending=True, stable=True).indices
    units, top = one.raw.descriptors, min(TOP, one.gallery - int(one.data.queries_in_gallery))
    if by is None:
        return order
    rows = []
    for query, nearest in zip(units[one.rows], order, strict=True):
        better = reorder(query, units[nearest[:top]], by)
        if keep_first:
            better = torch.cat([better.new_zeros(1), better[better != 0]])
        rows.append(torch.cat([nearest[better], nearest[top:]]))
    return torch.stack(rows)


def reorder(query: Tensor, near: Tensor, by: RerankBy) -> Tensor:
    scores = score_by_neighbors(query, near, by, keep_first=False)
    return scores.argsort(descending=True, stable=True)


def judge_crops(one: Collection, by: RerankBy | None) -> tuple[Tensor, Tensor]:
    """Give how many of the nearest crops keep, and whether they find their image, (Q,) percent.

    The image of a crop takes no part in the search for its other neighbors, which it would pull.
    """
    gallery = one.sample.images.descriptors
    count = len(one.sample.crops[0].descriptors)
    views = [gallery[:count], *(crop.descriptors for crop in one.sample.crops)]
    near = torch.zeros(len(views), count, len(gallery), dtype=torch.bool)
    found = torch.zeros(len(views), count)
    for view, queries in enumerate(views):
        for i, query in enumerate(queries):
            near[view, i, nearest(query, gallery, by, without=i)] = True
            if view:
                found[view, i] = nearest(query, gallery, by)[0] == i
    shared = [(near[i] & near[j]).sum(1) / NEAREST for i in range(len(views)) for j in range(i)]
    return 100 * torch.stack(shared).mean(0).double(), 100 * found[1:].mean(0).double()


def nearest(
    query: Tensor, gallery: Tensor, by: RerankBy | None, *, without: int | None = None
) -> Tensor:
    """Find the nearest of a query, (NEAREST,)."""
    cosines = gallery @ query
    if without is not None:
        cosines[without] = -torch.inf
    listed = cosines.topk(min(TOP, len(gallery) - 1)).indices
    return listed[:NEAREST] if by is None else listed[reorder(query, gallery[listed], by)[:NEAREST]]


def predict_channels(one: Collection, by: RerankBy | None) -> Tensor:
    """Find the nearest by one half of all directions from the other half, (S,) percent."""
    units = one.raw.descriptors[: one.gallery][sample_gate(one.gallery)]
    width = units.shape[1]
    generator = torch.Generator().manual_seed(0)
    turned = units @ torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    halves = [F.normalize(part, dim=-1) for part in turned.split((width + 1) // 2, dim=1)]
    agreed = torch.zeros(len(units))
    for seen, held in (halves, halves[::-1]):
        for i in range(len(units)):
            truth = nearest(held[i], held, None, without=i)
            agreed[i] += torch.isin(nearest(seen[i], seen, by, without=i), truth).sum()
    return 100 * agreed.double() / (2 * NEAREST)


if __name__ == "__main__":
    main()
