"""What `diagnose` says of known models at several sizes, and how much features change with a shift.

    CLEARVIT_WEIGHTS=... python benchmarks/verdict.py

Checks the level below which a change with a shift is called small: three models as they come and
one that was cured, each at 224, 336 and 518 px. Choices were made on the even images of the folder;
the odd ones are the others. Writes benchmarks/results/verdict.json after every model and renders
docs/results/verdict.md from it.
"""

from __future__ import annotations

import argparse
import datetime
from itertools import product
from typing import Any

import numpy as np

import clearvit as cv
from clearvit.images import find_images
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = (
    "demo",
    "demo-cured",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
)
SIZES = (224, 336, 518)
HALVES = ("even", "odd")


def main() -> None:
    options = parse()
    content = read_result("verdict") or {"rows": []}
    if not options.render:
        for model, size, half in product(options.models, options.sizes, options.halves):
            row = measure(model, size, half, options)
            kept = [r for r in content["rows"] if key(r) != key(row)]
            content["rows"] = sorted([*kept, row], key=key)
            content["date"] = datetime.date.today().isoformat()
            write_result("verdict", content, data=["photos"], models=options.models)
            print(row, flush=True)
    render("verdict")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--halves", nargs="+", choices=HALVES, default=HALVES)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--shifted", type=int, default=6)
    parser.add_argument("--render", action="store_true", help="only write the page again")
    return parser.parse_args()


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["size"], row["half"]


def measure(model: str, size: int, half: str, options: argparse.Namespace) -> dict[str, Any]:
    sources = find_images(options.images)[half == "odd" :: 2][: options.limit]
    backbone = cv.load(find_model(model))
    settings = {"size": size, "experiments": False, "shifted": options.shifted}
    found = cv.diagnose(backbone, sources, **settings)
    assert found.equivariance is not None
    ratios = np.array(found.equivariance.ratios)
    interval = bootstrap(ratios)
    return {
        "model": model,
        "size": size,
        "half": half,
        "images": len(found.observations.names),
        "shifted": len(ratios),
        "kinds": [one.kind for one in found.findings],
        "ratio": float(ratios.mean()),
        "low": float(interval.low),
        "high": float(interval.high),
        "flip": float(np.mean(found.equivariance.flip)),
    }


if __name__ == "__main__":
    main()
