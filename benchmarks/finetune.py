"""What metric learning gains on classes that it never saw.

    python benchmarks/finetune.py --work WORK [--models demo …] [--losses margin …]
    python benchmarks/finetune.py --page        # docs/results/finetune.md from the JSON alone

The classes of cars are split in two halves by their order (even and odd); a model is trained on one
half (a fifth of its classes chooses the epoch) and searched on the other, before and after, by
class token and re-ranked by 49 patches (symmetric Chamfer, weight chosen by the gate). Differences
are paired over queries, with 95 % intervals. Writes benchmarks/results/finetune.json.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = ("demo", "deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--losses", nargs="+", default=["margin"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--work", type=Path, default=Path("build/finetune"))
    parser.add_argument("--data", type=data_path, default=f"{DATA}/cars")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = read_result("finetune") or {"rows": {}}
    content["command"] = "python benchmarks/finetune.py --work WORK"
    for model in () if options.page else options.models:
        for loss in options.losses:
            key = f"{model} / {loss}"
            if key not in content["rows"]:
                content["rows"][key] = measure(model, loss, options)
                content["date"] = time.strftime("%Y-%m-%d")
                write_result("finetune", content, data=["cars"], seeds=[0], models=options.models)
                print(key, content["rows"][key], flush=True)
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


def measure(model: str, loss: str, options: argparse.Namespace) -> dict[str, Any]:
    seen, unseen = split_classes(options.data.resolve(), options.work)
    raw = cv.load(find_model(model), size=224)
    start = time.process_time()
    tuned = cv.finetune(
        raw,
        seen,
        out=options.work / f"{model}-{loss}",
        loss=loss,
        size=224,
        epochs=options.epochs,
        keep_anyway=True,
    )
    minutes = (time.process_time() - start) / 60
    table = cv.evaluate([raw, tuned], task="retrieval", data=unseen, size=224)
    found = []
    first = table.rows[0].model
    before = {row.setting: row for row in table.rows if row.model == first}
    for row in table.rows:
        if row.model != first:
            for metric in ("P@1", "MAP@R"):
                apart = row[metric].difference
                change = [apart.mean, apart.low, apart.high]
                old = before[row.setting][metric].mean
                found.append([row.setting, metric, old, row[metric].mean, change])
    return {"report": tuned.report.to_json(), "cpu minutes": minutes, "unseen": found}


if __name__ == "__main__":
    main()
