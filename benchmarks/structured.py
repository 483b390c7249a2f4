"""Base and re-ranked retrieval of the families of "Beyond the CLS Token", by each patch weight.

    python benchmarks/structured.py [--only NAME …]
    python benchmarks/render.py structured      # docs/results/structured.md from the JSON alone

DeiT-Ti and AugReg ViT-Ti with their weights; Swin-T and CvT-13 of the paper with random ones, since
their weights were not at hand: these rows prove the paths, not the paper's numbers. Cars, every
sixth class (5 x 12 images, 30 of them queries), 224 px, 49 patches, transport, the unweighted sum
of the paper, both conventions of R. Writes benchmarks/results/structured.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.backbones.guarded_timm import timm
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

RANDOM = {"Swin-T, random": "swin_tiny_patch4_window7_224"}
CVT = "CvT-13, random"
REAL = ("deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
QUERIES, STEP = 30, 6  # queries; every so-many-th class
VIT = ("uniform", "attention", "rollout-min", "cross-softmax")
WEIGHTS = {
    "Swin-T, random": ("uniform", "attention", "rollout-min", "cross"),
    CVT: ("uniform", "rollout", "rollout-min"),
}
METRICS = ("P@1", "RP", "MAP@R", "P@1 (diml)", "RP (diml)", "MAP@R (diml)")


def main() -> None:
    names = [*REAL, *RANDOM, CVT]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/cars")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        if name not in (read_result("structured") or {"rows": {}})["rows"]:
            row = measure(name, options.data)
            content = read_result("structured") or {"rows": {}}
            content["rows"][name], content["date"] = row, time.strftime("%Y-%m-%d")
            content["command"] = "python benchmarks/structured.py"
            write_result("structured", content, data=["cars"], seeds=[0], models=[name])
            print(name, row, flush=True)
    render("structured")


def load(name: str) -> cv.Backbone:
    torch.manual_seed(0)
    if name in RANDOM:
        return cv.load(timm.create_model(RANDOM[name], num_classes=0))
    if name == CVT:
        from transformers import CvtConfig, CvtModel

        with tempfile.TemporaryDirectory() as folder:
            CvtModel(CvtConfig()).save_pretrained(folder)
            return cv.load(f"hf:{folder}")
    return cv.load(find_model(name), size=224)


def measure(name: str, folder: Path) -> list[dict[str, Any]]:
    """Give the ranking by descriptors, then one row for each kind of patch weights."""
    with tempfile.TemporaryDirectory() as half:
        for one in sorted(p.name for p in folder.iterdir() if p.is_dir())[::STEP]:
            os.symlink(folder.resolve() / one, Path(half) / one)
        table = cv.evaluate(
            [load(name)],
            task="retrieval",
            data=half,
            size=224,
            patch_weights=WEIGHTS.get(name, VIT),
            weights=(1.0,),
            limit=QUERIES,
        )
    rows = []
    for row in table.rows:
        found = {metric: row[metric].mean for metric in METRICS}
        change = row["Δ MAP@R"] if row.setting != "descriptors" else None
        apart = [change.mean, change.low, change.high] if change else None
        rows.append({"setting": row.setting, "metrics": found, "change": apart})
    return rows


if __name__ == "__main__":
    main()
