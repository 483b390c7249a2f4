"""Does `mass="auto"` find how much two images share?

    python benchmarks/mass.py            # docs/results/mass.md

Two crops of one photo, of half its width and height, shifted so that 0, 25, 50, 75 or 100 % of the
area overlaps, and crops of two different photos; three models at 224 px, 7 x 7 patches, uniform
weights. Means with 95 % intervals over photos that did not set the rule (every tenth from the
fourth on). Writes benchmarks/results/mass.json.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import clearvit as cv
from clearvit.images import find_images, read_image
from clearvit.retrieval import pool_patches
from clearvit.retrieval.matching.mass import estimate_mass
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

OVERLAPS = (1.0, 0.75, 0.5, 0.25, 0.0)
MODELS = ("demo", "deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--photos", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = [read_image(one.source) for one in find_images(options.data)[4::10][: options.photos]]
    content: dict[str, Any] = read_result("mass") or {"models": {}}
    content |= {"command": "python benchmarks/mass.py", "photos": len(images)}
    for model in options.models:
        if model not in content["models"]:
            content["models"][model] = measure(cv.load(find_model(model), size=224), images)
            content["date"] = time.strftime("%Y-%m-%d")
            write_result("mass", content, data=["photos"], seeds=[0], models=options.models)
    render("mass")


def measure(backbone: cv.Backbone, images: list[Image.Image]) -> dict[str, list[float]]:
    """Mean, low and high of the mass of pairs of crops, by what they share."""
    found: dict[str, list[float]] = {f"{100 * o:.0f} % of the area": [] for o in OVERLAPS}
    found["different photos"] = []
    previous = None
    for image in images:
        crops = [crop(image, 0.0), *(crop(image, 1 - overlap) for overlap in OVERLAPS)]
        first, *others = features(backbone, crops)
        for name, other in zip(found, others, strict=False):
            found[name].append(mass(first, other))
        if previous is not None:
            found["different photos"].append(mass(first, previous))
        previous = first
    intervals = {name: bootstrap(np.array(values)) for name, values in found.items()}
    return {name: [one.mean, one.low, one.high] for name, one in intervals.items()}


def crop(image: Image.Image, shift: float) -> Image.Image:
    """Half of the image in each direction, moved to the right by a fraction of its own width."""
    width, height = image.width // 2, image.height // 2
    left, top = round(shift * width), image.height // 4
    return image.crop((left, top, left + width, top + height))


def features(backbone: cv.Backbone, crops: list[Image.Image]) -> torch.Tensor:
    tokens = backbone.tokens(crops)
    return F.normalize(pool_patches(tokens.patches, tokens.grid), dim=-1)


def mass(one: torch.Tensor, other: torch.Tensor) -> float:
    weights = torch.full((len(one),), 1 / len(one))
    return float(estimate_mass(one @ other.T, weights, weights))


if __name__ == "__main__":
    main()
