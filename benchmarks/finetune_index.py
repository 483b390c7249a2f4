"""How a fine-tuned model is ranked and re-ranked by an index with its defaults, on unseen classes.

    python benchmarks/finetune_index.py --work WORK [--models demo-none]

For models that `benchmarks/finetune.py --work WORK` wrote: an index of the unseen half of cars is
built as a user would build it (facet, whitening and weight chosen on the images, without labels),
and every image is searched. Adds "index" to the rows of benchmarks/results/finetune.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.retrieval.ranking_metrics import per_query_metrics
from clearvit.stats import bootstrap
from evidence import read_result, write_result
from render import render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo-none"])
    parser.add_argument("--work", type=Path, default=Path("build/finetune"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models:
        model, _, unfreeze = name.partition("-")
        key = f"{model} / {unfreeze}"
        row = measure(cv.load(f"dir:{options.work / name}", size=224), options.work / "unseen")
        content = read_result("finetune")
        content["rows"][key]["index"] = row
        write_result("finetune", content, data=["cars"], seeds=[0], models=[model])
        print(key, row, flush=True)
    render("finetune")


def measure(backbone: cv.Backbone, images: Path) -> dict[str, Any]:
    """P@1 and MAP@R of an index with its defaults, and by its descriptors alone."""
    with tempfile.TemporaryDirectory() as folder:
        index = cv.Index.build(backbone, images, out=Path(folder) / "index", size=224)
        paths = sorted(str(path) for path in images.glob("*/*") if path.is_file())
        scores = {}
        for name, rerank in (("descriptors", 0), ("index", None)):
            scores[name] = torch.cat([score(index, path, rerank) for path in paths])
    change = 100 * (scores["index"] - scores["descriptors"])
    both = [bootstrap(change[:, column].numpy()) for column in (0, 2)]
    return {
        "note": index.spec.note,
        **{name: (100 * found[:, [0, 2]].mean(0)).tolist() for name, found in scores.items()},
        "change": [[one.mean, one.low, one.high] for one in both],
    }


def score(index: cv.Index, path: str, rerank: int | None) -> torch.Tensor:
    """Score one query, itself left out."""
    own = Path(path)
    hits = index.search(path, k=60, rerank=rerank)
    names = [one.entry.name for one in hits if one.entry.name != f"{own.parent.name}/{own.name}"]
    relevant = torch.tensor([[name.split("/")[0] == own.parent.name for name in names]])
    others = len(list(own.parent.iterdir())) - 1
    return per_query_metrics(relevant, torch.tensor([others]))


if __name__ == "__main__":
    main()
