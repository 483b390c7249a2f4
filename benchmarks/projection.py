"""Positional projection and smoothing in other tasks: correspondence, retrieval, CorLoc, 1-NN.

    python benchmarks/projection.py [MODEL] --size 224 [--directions 20] [--limit 60]

One pass each: raw, directions of position removed, smoothed, both. PCK of matches under known warps
(photos), matches that land in the same class (VOC), re-ranking by patches (cars: P@1, MAP@R). The
class token passes none of these steps, so what it does is unchanged. Differences are paired with
raw. Writes benchmarks/results/projection-MODEL-SIZE.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.backbones.output import OutputSteps
from clearvit.cures.positional import with_output
from clearvit.files import write_json
from data import DATA, data_path, find_model
from finer import OUT

TASKS: dict[str, dict[str, Any]] = {
    "geometric-correspondence": {"data": "photos", "seeds": 1, "alphas": (0.05, 0.1)},
    "semantic-correspondence": {"data": "voc", "seeds": 1},
    "retrieval": {"data": "cars", "methods": ("chamfer",), "weights": (1.0,), "limit": None},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--directions", type=int, default=20)
    parser.add_argument("--limit", type=int, default=60, help="test images, but of retrieval")
    parser.add_argument("--data", type=data_path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    raw = cv.load(find_model(options.model), size=options.size)
    steps = {
        "raw": None,
        "projected": OutputSteps(options.directions),
        "smoothed": OutputSteps(0, True),
        "projected, smoothed": OutputSteps(options.directions, True),
    }
    models = []
    for name, one in steps.items():
        models.append(with_output(raw, one))
        models[-1].name = name
    found = {}
    for task, given in TASKS.items():
        rest = {"limit": options.limit, **given}
        folder = options.data / rest.pop("data")
        with torch.autocast("cpu", torch.bfloat16):
            table = cv.evaluate(models, task=task, data=folder, size=options.size, **rest)
        found[task] = table.to_json()
        print(table.text(), flush=True)
    content = {
        "model": options.model,
        "size": options.size,
        "directions": options.directions,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/projection.py {options.model} --size {options.size}",
        "tasks": found,
    }
    name = f"projection-{Path(options.model).name}-{options.size}.json"
    write_json(OUT / name, content)


if __name__ == "__main__":
    main()
