"""Ask an index of the dense model with a pruned one, or prune both? P@1 by class token.

    python benchmarks/prune_queries.py [--data CLASSES] [--learned dir:PATH] [--size 224]

Every photo of a folder with class folders asks for the nearest other one. Rows differ in who
describes the query and who the index; the same photos for all.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor

import clearvit as cv
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from tables import write_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/cars")
    parser.add_argument("--learned", help="trained predictors: dir:PATH or recipe:NAME")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.7, 0.5])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    torch.set_num_threads(options.threads)
    collection = read_retrieval(options.data)
    labels = torch.tensor(collection.labels)
    dense = cv.load("demo", size=options.size)
    index = described(dense, collection.images)
    lines = [f"| dense | dense | {shown(right(index, index, labels))} | |"]
    base = right(index, index, labels)
    for name, pruned in load_models(dense, options):
        queries = described(pruned, collection.images)
        for of, gallery in (("dense", index), ("pruned alike", queries)):
            found = right(queries, gallery, labels)
            difference = bootstrap(found - base)
            gain = f"{difference.mean:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"
            lines.append(f"| {name} | {of} | {shown(found)} | {gain} |")
            print(lines[-1], flush=True)
    text = page(lines, options, len(labels))
    write_tables("prune_queries", text, data=["cars"], models=["demo"])


def load_models(
    dense: cv.Backbone, options: argparse.Namespace
) -> list[tuple[str, PrunedBackbone]]:
    found = []
    learned = cv.load(find_model(options.learned), size=options.size) if options.learned else None
    for keep in options.keep:
        for scorer in ("class", "merge"):
            found.append((f"{keep:g}, {scorer}", cv.prune(dense, keep=keep, scorer=scorer)))
        if isinstance(learned, PrunedBackbone):
            found.append((f"{keep:g}, learned", learned.with_keep(keep)))
    return found  # type: ignore[return-value]


def described(backbone: cv.Backbone, images: object) -> Tensor:
    """Class tokens of unit length, (N, C)."""
    parts = [
        backbone.forward(pixels).cls
        for pixels in backbone.pixels([str(path) for path in images], batch=4)  # type: ignore[attr-defined]
    ]
    return F.normalize(torch.cat(parts), dim=-1)  # type: ignore[arg-type]


def right(queries: Tensor, index: Tensor, labels: Tensor) -> Tensor:
    """Whether the nearest other photo is of the class, in percent, (N,)."""
    similarity = (queries @ index.T).fill_diagonal_(-torch.inf)
    return 100.0 * (labels[similarity.argmax(1)] == labels)


def shown(values: Tensor) -> str:
    found = bootstrap(values)
    return f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"


def page(lines: list[str], options: argparse.Namespace, count: int) -> str:
    return f"""# Pruned queries

`demo` (DINOv2 ViT-S/14), {options.size} px, {count} photos of `{options.data.name}`, each asking
for the nearest other one by class token; P@1 in percent, 95 % intervals over queries. The last
column is the difference to dense queries on a dense index, query by query.
{time.strftime("%Y-%m-%d")}, {platform.machine()}, torch {torch.__version__}. Reproduce:
`python benchmarks/prune_queries.py --learned dir:PRUNED`

| query | index | P@1 | difference |
|---|---|---|---|
{chr(10).join(lines)}
"""


if __name__ == "__main__":
    with torch.inference_mode():
        main()
