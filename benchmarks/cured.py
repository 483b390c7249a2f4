"""What a finished cure is worth in one forward pass, beside its teacher and the raw model.

    python benchmarks/cured.py demo --cure demo-cured --work WORK [--directions 20]
    python benchmarks/cured.py MODEL --work WORK      # of CLEARVIT_WEIGHTS: cures it first
    python benchmarks/cured.py --page                 # docs/results/cured.md

Segmentation on PASCAL VOC as in finer.py (test images took no part in any choice), class-token 1-NN
and, of a classifier, top-1 of its own head on imagenet100; high-norm tokens by block at several
sizes, on images that no cure saw, by the definition of `diagnose`. WORK keeps what is finished.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from data import DATA, data_path, find_model
from evidence import write_result
from judging import (
    RAW,
    compare_counts,
    compare_right,
    count_segmentation,
    high_norm_tokens,
    judge_class_token,
    norms_by_block,
    part_of_gain,
    splits_of,
)
from render import render
from view_features import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--cure", help="a finished cure, for cv.load; else one is trained")
    parser.add_argument("--work", type=Path, default=Path("build/cured"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--directions", type=int, default=0, help="that the teacher removed")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 336, 448, 518])
    parser.add_argument("--images", type=int, default=16, help="whose norms are measured")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        render("cured")
        return
    torch.set_num_threads(1)
    name = Path(options.model).name
    work, raw = options.work / f"{name}-224", cv.load(find_model(options.model), size=224)
    path, report = options.cure, None
    if path is None:
        photos = options.data / "photos"
        report = str(cv.cure(raw, photos, out=work / "cured", keep_anyway=True).report)
        path = f"dir:{work / 'cured'}"
    cured = cv.load(find_model(path), size=224)
    models = {"raw": raw, "cured": cured}
    command = f"python benchmarks/cured.py {options.model}"
    if options.cure:
        command += f" --cure {options.cure} --directions {options.directions}"
    content: dict[str, Any] = {"model": options.model, "date": time.strftime("%Y-%m-%d")}
    content |= {"command": command, "directions": options.directions, "report": report}
    content["segmentation"] = segmentation(raw, path, options, work)
    right = {key: judge_class_token(model, options.data, 224) for key, model in models.items()}
    content["class token"] = {
        task: {"raw": float(100 * values.mean()), **compare_right([right["cured"][task]], values)}
        for task, values in right["raw"].items()
    }
    save(name, content)
    images = splits_of(options.data, "report")[1].images[:: 150 // options.images][: options.images]
    content["norms"] = {}
    for size in options.sizes:
        norms = {key: norms_by_block(model, images, size) for key, model in models.items()}
        content["norms"][str(size)] = high_norm_tokens(norms)
        content["norm images"] = len(images)
        save(name, content)
        print(size, content["norms"][str(size)], flush=True)


def save(name: str, content: dict[str, Any]) -> None:
    used = ("photos", "voc", "imagenet100")
    write_result(f"cured-{name}", content, data=used, seeds=[0], models=[content["model"]])
    render("cured")


def segmentation(
    raw: cv.Backbone, path: str, options: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """Rows by name: the model, its teacher, the cured one, with differences to raw."""
    splits, removed = splits_of(options.data, "report"), options.directions
    teacher = Recipe("teacher", 10, "lattice", directions=removed)
    rows = [RAW, teacher, Recipe("cured", model=path)]
    counts = count_segmentation(raw, rows, splits, work, 224)
    classes, table = splits[1].classes, {}
    for task in ("linear", "kNN"):
        base, best, own = (counts[row.name][task] for row in rows)
        table[task] = {
            row.name: compare_counts(counts[row.name][task], base, classes) for row in rows
        }
        table[task]["part of the gain"] = part_of_gain(own, best, base, classes)
        print(task, json.dumps(table[task]), flush=True)
    return table


if __name__ == "__main__":
    main()
