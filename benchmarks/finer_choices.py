"""Choices behind `cv.denoise`, made on training images only: kernel, width, guidance by the image.

    python benchmarks/finer_choices.py [MODEL] --size 224 --work WORK [--parts kernels guidance]

The labelled images of PASCAL VOC's training split are divided into thirds: two train a linear probe
and fill a bank of neighbors, the other is measured. For kernel and width every third is measured in
turn, so that 200 images count; for guidance by the image the first. No image of finer.py's tables
is used for measuring here. A part that is not run again stays as it was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit, load_image
from clearvit.evaluation.evaluation_table import Metric, Result, resample_metrics
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.knn import fit_knn
from clearvit.probes.metrics import segmentation_counts, segmentation_metrics
from clearvit.probes.segmentation import collect_patches, measure_whole
from clearvit.probes.sgd import train_fast_head
from clearvit.views.guidance import refine_by_image
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from finer import POPULATED
from render import render
from view_features import Recipe, StoredFeatures, extract, stored_features

SHOWN = ("mIoU of 7", "boundary IoU of 7")
# The first is compared to. A box one patch wide is the tent of 0.75 at scale 2: with shifts by half
# patches a token is 1/4 or 3/4 of a patch away from a cell, and both take the nearer ones alone.
KERNELS = (("tent", 1.0), ("tent", 0.75))
COLORS = (0.05, 0.1, 0.2)
FOLDS = 3
BANK = 20_000  # labelled patches that vote


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("build/finer"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--parts", nargs="+", default=["kernels", "guidance"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    backbone = use_whole_image(cv.load(find_model(options.model)))
    work = options.work / f"{backbone.name.replace('/', '-')[-40:]}-{options.size}"
    split = read_masks(options.data / "voc", split="train")
    split = split.select(select_evenly(len(split), options.train))
    kernels = [
        Recipe(f"scale 2, {kernel} {width:g}", 10, "lattice", 2, kernel=kernel, width=width)
        for kernel, width in KERNELS
    ]
    guided = Recipe("scale 2, tokens guided by the image", 10, "lattice", 2, guided=True)
    rows = {"kernels": [Recipe("raw"), *kernels], "guidance": [Recipe("raw"), kernels[0], guided]}
    wanted = [row for part in options.parts for row in rows[part]]
    extract(work, split, wanted, backbone, options.size)
    open_row = partial(stored_features, work, split, backbone=backbone, size=options.size, bases={})
    name = f"finer-choices-{Path(options.model).name}-{options.size}"
    content = read_result(name)
    content |= {"model": options.model, "size": options.size, "date": time.strftime("%Y-%m-%d")}
    content["command"] = f"python benchmarks/finer_choices.py {options.model} --size {options.size}"
    measures = {"kernels": Choices.kernels, "guidance": Choices.guidance}
    for part in options.parts:
        content[part] = measures[part](Choices(split, open_row), rows[part])
    write_result(name, content, data=["voc"], seeds=[0], models=[options.model])
    render("finer")


class Choices:
    """Measures rows on labelled training images."""

    def __init__(self, split: MaskSplit, open_row: Any) -> None:
        self.split, self.open_row = split, open_row
        subset = tuple(split.classes.index(name) for name in POPULATED)
        self.summary = partial(segmentation_metrics, classes=split.classes, subset=subset)

    def fold(self, number: int) -> tuple[list[int], list[int]]:
        """Images that train and images that are measured."""
        images = range(len(self.split))
        return [i for i in images if i % FOLDS != number], list(images[number::FOLDS])

    def kernels(self, rows: list[Recipe]) -> list[dict[str, Any]]:
        """Linear probe and kNN of every image, with differences to raw and to the first kernel."""
        found: list[dict[str, Any]] = []
        measured: list[dict[str, dict[str, Metric]]] = []
        for recipe in rows:
            features, counts = self.open_row(recipe=recipe), []
            for number in range(FOLDS):
                trained, tested = self.fold(number)
                head = train_fast_head(features, self.split, trained)
                bank = collect_patches(features, self.split, trained, limit=BANK)
                scorers = [head, fit_knn(*bank, k=30, temperature=0.02)]
                part, images = _Part(features, tested), self.split.select(tested)
                counts.append(measure_whole(scorers, part, images))
            joined = {
                task: self.metrics(np.concatenate([fold[i] for fold in counts]))
                for i, task in enumerate(("linear", "kNN"))
            }
            measured.append(joined)
            entry: dict[str, Any] = {"row": recipe.name}
            for task, metrics in joined.items():
                bases = [one[task] for one in (measured[0], measured[min(1, len(found))])]
                entry[task] = {name: compared(name, metrics, bases) for name in SHOWN}
            found.append(entry)
            print(entry, flush=True)
        return found

    def guidance(self, rows: list[Recipe]) -> list[dict[str, Any]]:
        """Linear probe; guidance of scores by the image as further entries of all but the last."""
        trained, tested = self.fold(0)
        found: list[dict[str, Any]] = []
        base: dict[str, Metric] | None = None
        images = self.split.select(tested)
        for recipe in rows:
            features = self.open_row(recipe=recipe)
            head = train_fast_head(features, self.split, trained)
            part = _Part(features, tested)
            counts = {recipe.name: measure_whole([head], part, images)[0]}
            for color in () if recipe.guided else COLORS:
                name = f"{recipe.name}, scores guided by the image, {color:g}"
                counts[name] = measure_guided(head, part, images, color)
            for name, one in counts.items():
                metrics = self.metrics(one)
                base = base or metrics
                entry = {shown: compared(shown, metrics, [base]) for shown in SHOWN}
                found.append({"row": name, "linear": entry})
                print(found[-1], flush=True)
        return found

    def metrics(self, counts: Any) -> dict[str, Metric]:
        """Metrics of counts, one row per image, with their resampled values."""
        return resample_metrics(Result("", 0, [counts], self.summary), seed=0)


def compared(
    name: str, metrics: dict[str, Metric], bases: Sequence[dict[str, Metric]]
) -> list[float]:
    """Value, and mean, low and high of its difference to each base."""
    values = [metrics[name].interval().mean]
    for base in bases:
        values += vars((metrics[name] - base[name]).interval()).values()
    return values


class _Part:
    """Features of some images."""

    def __init__(self, features: StoredFeatures, indices: list[int]) -> None:
        self.features, self.indices, self.grid = features, indices, features.grid

    def patches(self, indices: list[int]) -> Tensor:
        return self.features.patches([self.indices[i] for i in indices])


def measure_guided(scorer: Any, features: Any, split: MaskSplit, color: float) -> Any:
    """`measure_whole` with scores refined by the image."""
    rows = []
    for index in range(len(split)):
        mask = split.read(index)
        scores = scorer(features.patches([index])[0])
        probabilities = scores.softmax(1).T.unflatten(1, features.grid)[None]
        photo = torch.from_numpy(np.array(load_image(split.images[index]))) / 255
        pixels = photo.permute(2, 0, 1)[None]
        refined = refine_by_image(probabilities, pixels, mask.shape, color=color)[0]
        rows.append(segmentation_counts(refined.argmax(0).numpy(), mask, len(split.classes)))
    return np.stack(rows)


if __name__ == "__main__":
    main()
