"""The experiments of "Vision Transformers Need Registers" on real models with artifacts.

    python benchmarks/token_probes.py [--models demo …] [--limit 200]
    python benchmarks/token_probes.py --page     # docs/results/token_probes.md from the JSON alone

Neighbors after patch embedding, linear probes for position and pixels, and classification from one
random token, at the block where `diagnose` finds most artifact tokens, on 200 images of imagenet100
(224 px; the demo model at 336 px, where it has artifacts). Writes results/token_probes.json.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

import clearvit as cv
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

SIZES = {"vit_tiny_patch16_224.augreg_in21k_ft_in1k": 224, "demo": 336}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SIZES))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = read_result("token_probes") or {"models": {}}
    content["command"] = "python benchmarks/token_probes.py"
    for model in () if options.page else options.models:
        if model not in content["models"]:
            content["models"][model] = measure(model, options)
            content["date"] = time.strftime("%Y-%m-%d")
            used = ["imagenet100"]
            write_result("token_probes", content, data=used, seeds=[0, 1, 2], models=[model])
    render("token_probes")


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    backbone = cv.load(find_model(model), size=SIZES.get(model, 224))
    found = cv.diagnose(backbone, options.data, limit=options.limit, equivariance=False)
    assert found.experiments is not None
    attention = None if found.attention is None else str(found.attention)
    size = SIZES.get(model, 224)
    text = json.dumps(found.experiments.to_json()).replace(backbone.name, model)  # not a path
    return {"size": size, "attention": attention, "experiments": json.loads(text)}


if __name__ == "__main__":
    main()
