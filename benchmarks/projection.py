"""Directions of position removed, before and after, in tasks that have no table of their own.

    python benchmarks/projection.py --work WORK [--models demo …]       # measures what is missing
    python benchmarks/finer.py --page                                   # writes the page

Matching under known warps and between images of one class, boxes of `discover` on final tokens,
depth, and retrieval by patches (49 of an image; the nearest 100 ranked by patches alone). Removed
are as many directions as `cv.cure(method="positional")` chooses on 48 photos without labels; where
it chooses none, 20 show what they would have done. Differences are paired over images or queries,
with 95 % intervals. Writes benchmarks/results/projection.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.probes.features import use_whole_image
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from finer import choose_directions, discovery
from render import render
from view_features import Recipe

MODELS = (
    "demo",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "deit_tiny_patch16_224",
)
BY_PATCHES = {"methods": ("chamfer", "transport"), "weights": (1.0,)}
TASKS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "known warps": ("geometric-correspondence", "photos", {"limit": 100}, ("PCK@0.05", "PCK@0.1")),
    "images of one class": ("semantic-correspondence", "voc", {}, ("same class",)),
    "depth": ("depth", "depth", {}, ("RMSE",)),
    "cars": ("retrieval", "cars", BY_PATCHES, ("P@1", "MAP@R")),
    "corridor": ("retrieval", "corridor", BY_PATCHES, ("P@1", "R@5")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", default=["boxes", *TASKS])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("build/finer"))
    parser.add_argument("--data", type=data_path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = read_result("projection") or {"models": {}}
    used = ("photos", "voc", "depth", "cars", "corridor")
    content |= {"size": options.size, "date": time.strftime("%Y-%m-%d")}
    content["command"] = "python benchmarks/projection.py --work WORK"
    for model in options.models:
        entry = content["models"].setdefault(model, {"tasks": {}})
        for task in options.tasks:
            if task not in entry["tasks"]:
                entry |= measure(model, task, options, entry)
                write_result("projection", content, data=used, seeds=[0], models=MODELS)
    render("finer")


def measure(
    model: str, task: str, options: argparse.Namespace, entry: dict[str, Any]
) -> dict[str, Any]:
    """Run one task with and without projection, and add it to the entry of the model."""
    raw = cv.load(find_model(model), size=options.size)
    whole = use_whole_image(cv.load(find_model(model)))
    work = options.work / f"{whole.name.replace('/', '-')[-40:]}-{options.size}"
    chosen = choose_directions(whole, options.size, options.data, work)["directions"]
    removed = chosen or 20
    if task == "boxes":
        rows = [Recipe("raw"), Recipe("projected", directions=removed)]
        before, after = discovery(whole, rows, options, work)
        found = [["CorLoc", "", before["CorLoc"], after["CorLoc"], after["minus raw"]]]
    else:
        projected = cv.cure(raw, method="positional", directions=removed, size=options.size)
        found = compared(raw, projected, task, options)
    print(model, task, found, flush=True)
    tasks = entry["tasks"] | {task: found}
    return {"chosen": chosen, "removed": removed, "tasks": tasks}


def compared(
    raw: cv.Backbone, projected: cv.Backbone, task: str, options: argparse.Namespace
) -> list[list[Any]]:
    """Metric, setting, both values and the paired difference."""
    name, folder, own, metrics = TASKS[task]
    place = options.data / folder
    table = cv.evaluate([raw, projected], task=name, data=place, size=options.size, **own)
    found = []
    first = table.rows[0].model
    before = {row.setting: row for row in table.rows if row.model == first}
    for row in table.rows:
        if row.model == first or row.setting == "descriptors":
            continue
        for metric in metrics:
            apart = row[metric].difference
            assert apart is not None
            change = [apart.mean, apart.low, apart.high]
            old = before[row.setting][metric].mean
            found.append([metric, row.setting, old, row[metric].mean, change])
    return found


if __name__ == "__main__":
    main()
