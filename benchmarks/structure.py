"""Does the structure of a backbone's patches tell whether patch-level re-ranking helps it?

    python benchmarks/structure.py            # measures what is missing, then writes the page
    python benchmarks/structure.py --page     # docs/results/structure.md from the JSON alone

The measures of `clearvit compare --structure` on 24 images of each collection, and what re-ranking
by patches (symmetric Chamfer, 49 patches of an image, weight 1, no gate) really changes there, for
six backbones. Rank correlations over all pairs of backbone and collection, with the p value of
10,000 permutations; and how often a cut of each measure, learned on two collections, predicts the
sign of the change in the third. Writes benchmarks/results/structure.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.artifacts.structure import measure_structure
from clearvit.backbones.guarded_timm import timm
from clearvit.images import find_images, spread_evenly
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

COLLECTIONS = {"cars": "MAP@R", "flowers": "MAP@R", "corridor": "R@1"}
IMAGES, SIZE = 24, 224
UNTRAINED = "vit_small_patch14_dinov2"
BACKBONES = (
    "demo",
    "demo-cured",
    "demo, projected",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "untrained ViT-S/14",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--models", nargs="+", choices=BACKBONES, default=BACKBONES)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = read_result("structure") or {"rows": {}}
    content |= {"command": "python benchmarks/structure.py", "images": IMAGES, "size": SIZE}
    for name in () if options.page else options.models:
        missing = [one for one in COLLECTIONS if f"{name} / {one}" not in content["rows"]]
        backbone = load(name) if missing else None
        for collection in missing:
            row = measure(backbone, options.data / collection, COLLECTIONS[collection])
            content["rows"][f"{name} / {collection}"] = row
            content["date"] = time.strftime("%Y-%m-%d")
            write_result("structure", content, data=COLLECTIONS, seeds=[0], models=BACKBONES)
            print(name, collection, row, flush=True)
    render("structure")


def load(name: str) -> cv.Backbone:
    if name.startswith("untrained"):
        torch.manual_seed(0)
        return cv.load(timm.create_model(UNTRAINED, num_classes=0, img_size=SIZE))
    if name.endswith("projected"):
        return cv.cure(cv.load("demo", size=SIZE), method="positional", directions=20)
    return cv.load(find_model(name), size=SIZE)


def measure(backbone: cv.Backbone, folder: Path, metric: str) -> dict[str, Any]:
    """Structure on a few images, and the metric before and after re-ranking."""
    images = spread_evenly(find_images(folder), IMAGES)
    maps = backbone.tokens([one.source for one in images]).map
    table = cv.evaluate(
        [backbone],
        task="retrieval",
        data=folder,
        size=SIZE,
        methods=("chamfer",),
        weights=(1.0,),
    )
    base, *others = table.rows
    after = next(row for row in others if "chamfer" in row.setting)
    return {
        "structure": measure_structure(maps).to_json(),
        "metric": metric,
        "base": base[metric].mean,
        "re-ranked": after[metric].mean,
    }


if __name__ == "__main__":
    main()
