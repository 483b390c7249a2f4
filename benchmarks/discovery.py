"""CorLoc of LOST, TokenCut and our default on a PASCAL VOC folder, for one or several models.

    python benchmarks/discovery.py [NAME=MODEL …] --data VOC2012/ [--sizes 224 448] [--planted]
        [--denoised 224] [--work DIR] [--limit N]

Without NAME= a model has its own name. One forward pass per image serves every method. Rows: all
images, those at even and at odd places of the list, with 95 % intervals over resampled images. Our
default was chosen by the even ones. `--planted` adds the first model with artifacts, 2 % high-norm
tokens from the middle block on, and tells what they cost. `--denoised` adds, at these sizes, the
average of its final tokens over 10 views, the only features that views can be averaged of. With
`--work` finished rows are kept there, and the same command continues.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.artifacts.outliers import outlier_mask
from clearvit.backbones.vit import VitBackbone
from clearvit.datasets.voc import AnnotatedImage, read_voc_boxes
from clearvit.discovery import consensus, corloc, lost, to_pixels, tokencut
from clearvit.discovery.discovery_features import FEATURES, make_plan, read_features
from clearvit.files import write_json
from clearvit.images import read_image
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = (
    "demo",
    "demo-cured",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
)
PLANTED = ", planted artifacts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--data", type=data_path, default=f"{DATA}/voc")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224])
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--denoised", type=int, nargs="+", default=[], help="sizes")
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--limit", type=int, help="images")
    parser.add_argument("--work", type=Path, help="keep finished rows here; resumes")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data with a VOC folder.")
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message=".*the box is meaningless")
    images = read_voc_boxes(options.data).images[: options.limit]
    stored = read_result("discovery")
    known = stored.get("rows", {}) if stored.get("images") == len(images) else {}
    rows: dict[str, dict[str, list[bool]]] = {}
    for key, make, size in planned_rows(options):
        start = time.perf_counter()
        rows[key] = kept(key, make, images, size, options)
        scores = {m: round(100 * np.mean(h)) for m, h in rows[key].items()}
        print(f"{key}: {scores}, {time.perf_counter() - start:.0f} s", flush=True)
        content = {"images": len(images), "rows": known | rows}
        write_result("discovery", content, data=["voc"], models=options.models)
    print(render("discovery").read_text("utf-8"))


Row = tuple[str, Callable[[], cv.Backbone], int]


def planned_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Names of the rows, what makes their models, and sizes."""
    models = dict(named(model) for model in options.models)
    name, first = next(iter(models.items()))
    for size in options.sizes:
        for key, model in models.items():
            yield f"{key}, {size} px", partial(cv.load, find_model(model)), size
        if options.planted:
            yield f"{name}{PLANTED}, {size} px", partial(with_artifacts, first), size
        if size in options.denoised:
            make = partial(denoised, first, options.views)
            yield f"{name} x {options.views} views, {size} px", make, size


def named(model: str) -> tuple[str, str]:
    """Read "cured=dir:PATH", or a model that goes by its own name."""
    name, given, path = model.partition("=")
    return (name, path) if given else (model, model)


def with_artifacts(model: str) -> cv.Backbone:
    return cv.testing.planted(cv.load(find_model(model)), "high-norm").backbone


def denoised(model: str, views: int) -> cv.Backbone:
    return cv.cure(cv.load(find_model(model)), method="denoise", config=cv.CureConfig(views=views))


def kept(
    key: str,
    make: Callable[[], cv.Backbone],
    images: tuple[AnnotatedImage, ...],
    size: int,
    options: argparse.Namespace,
) -> dict[str, list[bool]]:
    """Correct boxes of one row, from the work directory when they are there."""
    path = None
    if options.work:
        name = re.sub(r"[^\w.-]+", "-", key)
        path = options.work / f"{name}-{len(images)}.json"
        if path.exists():
            found: dict[str, list[bool]] = json.loads(path.read_text())
            return found
    result = measured(make(), images, size)
    if path:
        write_json(path, result)
    return result


def measured(
    backbone: cv.Backbone, images: tuple[AnnotatedImage, ...], size: int
) -> dict[str, list[bool]]:
    """Correct boxes of every method on every image."""
    result: dict[str, list[bool]] = {}
    height_width = backbone.fitting_size(size)
    plain = isinstance(backbone, VitBackbone)
    plan = make_plan(backbone, cv.DiscoverConfig(features=FEATURES if plain else None))
    for image in images:
        photo = read_image(image.image)
        pixels = backbone.preprocessing(photo, height_width)[None]
        with torch.no_grad():
            features, norms, grid = read_features(backbone, plan, pixels)
        mine = [feature[0] for feature in features]
        boxes = final_answers(mine[0], grid) if norms is None else answers(mine, norms[0], grid)
        for name, box in boxes.items():
            placed = to_pixels(box, grid, (photo.height, photo.width))
            result.setdefault(name, []).append(corloc([placed], [image.boxes]) > 0)
    return result


def answers(features: list[Tensor], norms: Tensor, grid: tuple[int, int]) -> dict[str, tuple]:
    """Boxes in patches, by method."""
    by_kind = {name: features[i :: len(FEATURES)] for i, name in enumerate(FEATURES)}
    key, query = by_kind["key"][-1], by_kind["query"][-1]
    query = torch.nn.functional.normalize(query, dim=1)
    ours = [f for pair in zip(by_kind["token"], by_kind["value"], strict=True) for f in pair]
    return {
        "whole image": (0, 0, grid[1], grid[0]),
        "LOST": lost(key, grid).box,
        "LOST, centred": lost(key - key.mean(0), grid).box,
        "LOST, mean bias": lost(query, grid, bias=-mean_cosine(query)).box,
        "TokenCut": tokencut(key, grid).box,
        "TokenCut, mean tau": tokencut(key, grid, tau=mean_cosine(key)).box,
        "consensus, unchecked": consensus(ours, grid)[0].box,
        "consensus": consensus(ours, grid, exclude=outlier_mask(norms).any(0))[0].box,
    }


def final_answers(tokens: Tensor, grid: tuple[int, int]) -> dict[str, tuple]:
    """Boxes in patches where there are final tokens only."""
    unit = torch.nn.functional.normalize(tokens, dim=1)
    return {
        "whole image": (0, 0, grid[1], grid[0]),
        "LOST": lost(tokens, grid).box,
        "LOST, centred": lost(tokens - tokens.mean(0), grid).box,
        "LOST, mean bias": lost(unit, grid, bias=-mean_cosine(unit)).box,
        "TokenCut": tokencut(tokens, grid).box,
        "TokenCut, mean tau": tokencut(tokens, grid, tau=mean_cosine(tokens)).box,
        "consensus": consensus([tokens], grid)[0].box,
    }


def mean_cosine(features: Tensor) -> float:
    unit = torch.nn.functional.normalize(features, dim=1)
    count = len(unit)
    return float((unit.sum(0).square().sum() - count) / (count * count - count))


if __name__ == "__main__":
    main()
