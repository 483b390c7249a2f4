"""What metric learning gains on classes that it never saw.

    python benchmarks/finetune.py --work WORK [--models demo …] [--sets cars …]
    python benchmarks/render.py finetune        # docs/results/finetune.md from the JSON alone

The classes of a set are split in two halves by their order (even and odd); a model trains on one
half, which alone judges it (its classes are held out in turn), and searched on the other half,
before and after: by descriptor, and re-ranked by 49 patches (Chamfer, weight chosen by the gate).
Differences are paired over queries, with 95 % intervals. Writes benchmarks/results/finetune.json.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = ("demo", "deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
METRICS = ("P@1", "MAP@R")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--unfreeze", nargs="+", default=["none"])
    parser.add_argument("--epochs", type=int, default=6, help="with a network that trains")
    parser.add_argument("--work", type=Path, default=Path("build/finetune"))
    parser.add_argument("--sets", nargs="+", default=["cars"])
    parser.add_argument("--data", type=data_path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model, unfreeze, name in product(options.models, options.unfreeze, options.sets):
        key = f"{model} / {unfreeze}" + ("" if name == "cars" else f" / {name}")
        if key not in (read_result("finetune") or {"rows": {}})["rows"]:
            row = measure(model, unfreeze, options.data / name, options)
            content = read_result("finetune") or {"rows": {}}
            content["rows"][key], content["date"] = row, time.strftime("%Y-%m-%d")
            content["command"] = "python benchmarks/finetune.py --work WORK"
            write_result("finetune", content, data=[name], seeds=[0], models=[model])
            print(key, row, flush=True)
    render("finetune")


def split_classes(folder: Path, work: Path) -> tuple[Path, Path]:
    """Lay links to every second class folder into two folders."""
    parts = (work / "seen", work / "unseen")
    for number, name in enumerate(sorted(p.name for p in folder.iterdir() if p.is_dir())):
        target = parts[number % 2] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.symlink(folder / name, target)
    return parts


def measure(model: str, unfreeze: str, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    seen, unseen = split_classes(data.resolve(), options.work / data.name)
    raw = cv.load(find_model(model), size=224)
    epochs = 0 if unfreeze == "none" else options.epochs
    start = time.process_time()
    tuned = cv.finetune(
        raw,
        seen,
        out=options.work / data.name / f"{model}-{unfreeze}",
        unfreeze=unfreeze,
        size=224,
        epochs=epochs,
        keep_anyway=True,
    )
    minutes = (time.process_time() - start) / 60
    again = {"methods": ("chamfer",), "weights": ("gate",)}
    table = cv.evaluate([raw, tuned], task="retrieval", data=unseen, size=224, **again)
    first, found = table.rows[0].model, []
    before, after = (
        [r for r in table.rows if (r.model == first) == same] for same in (True, False)
    )
    for old, new in zip(before, after, strict=True):
        for metric in METRICS:
            apart = new[metric].difference  # none where the gates chose different weights
            change = None if apart is None else [apart.mean, apart.low, apart.high]
            found.append([new.setting, metric, old[metric].mean, new[metric].mean, change])
    report = tuned.report.to_json()
    return {"report": report, "cpu minutes": minutes, "epochs": epochs, "unseen": found}


if __name__ == "__main__":
    main()
