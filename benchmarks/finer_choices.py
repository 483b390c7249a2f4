"""Choices behind `cv.denoise`, made on training images only: kernel, width, guidance by the image.

    python benchmarks/finer_choices.py [MODEL] --size 224 --work WORK

The labelled images of PASCAL VOC's training split are divided: two thirds train a linear probe, one
third is measured. No image of finer.py's tables is used for measuring here.
"""

from __future__ import annotations

import argparse
import time
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
from clearvit.files import write_json
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.metrics import segmentation_counts, segmentation_metrics
from clearvit.probes.segmentation import measure_whole
from clearvit.probes.sgd import train_fast_head
from clearvit.views.guidance import refine_by_image
from data import DATA, data_path, find_model
from finer import OUT, POPULATED
from view_features import Recipe, StoredFeatures, extract, stored_features

SHOWN = ("mIoU of 7", "boundary IoU of 7")
KERNELS = (("tent", 0.75), ("tent", 1.0), ("tent", 1.5), ("box", 1.0))
COLORS = (0.05, 0.1, 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("build/finer"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--train", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backbone = use_whole_image(cv.load(find_model(options.model)))
    work = options.work / f"{backbone.name.replace('/', '-')[-40:]}-{options.size}"
    split = read_masks(options.data / "voc", split="train")
    split = split.select(select_evenly(len(split), options.train))
    rows = [Recipe("raw")]
    for kernel, width in KERNELS:
        name = f"scale 2, {kernel} {width:g}"
        rows.append(Recipe(name, 10, "lattice", 2, kernel=kernel, width=width))
    rows.append(Recipe("scale 2, tokens guided by the image", 10, "lattice", 2, guided=True))
    extract(work, split, rows, backbone, options.size)
    open_row = partial(stored_features, work, split, backbone=backbone, size=options.size, bases={})
    found = Choices(split, open_row).measure(rows)
    content = {"model": options.model, "size": options.size, "date": time.strftime("%Y-%m-%d")}
    content["command"] = f"python benchmarks/finer_choices.py {options.model} --size {options.size}"
    OUT.mkdir(exist_ok=True)
    write_json(
        OUT / f"finer-choices-{Path(options.model).name}-{options.size}.json",
        {**content, "rows": found},
    )


class Choices:
    """Probes of rows on a division of one split."""

    def __init__(self, split: MaskSplit, open_row: Any) -> None:
        self.split, self.open_row = split, open_row
        self.tested = list(range(0, len(split), 3))
        self.trained = [i for i in range(len(split)) if i % 3]
        subset = tuple(split.classes.index(name) for name in POPULATED)
        self.summary = partial(segmentation_metrics, classes=split.classes, subset=subset)
        self.base: dict[str, dict[str, Metric]] = {}

    def measure(self, rows: list[Recipe]) -> list[dict[str, Any]]:
        """One entry per row; guidance by the image as further entries of some."""
        found = []
        for recipe in rows:
            features = self.open_row(recipe=recipe)
            head = train_fast_head(features, self.split, self.trained)
            entry = {"row": recipe.name}
            entry["linear"] = self.score("linear", features, head)
            found.append(entry)
            print(entry, flush=True)
            if recipe.name == "raw" or recipe.name.endswith("tent 1"):
                for color in COLORS:
                    name = f"{recipe.name}, scores guided by the image, {color:g}"
                    guided = self.score("linear", features, head, color)
                    found.append({"row": name, "linear": guided})
                    print(found[-1], flush=True)
        return found

    def score(
        self, task: str, features: StoredFeatures, scorer: Any, color: float | None = None
    ) -> dict[str, Any]:
        """Metrics of a scorer on the measured third, with differences to raw."""
        tested = self.split.select(self.tested)
        if color is None:
            rows = measure_whole([scorer], _Part(features, self.tested), tested)[0]
        else:
            rows = measure_guided(scorer, _Part(features, self.tested), tested, color)
        metrics = resample_metrics(Result("", 0, [rows], self.summary), seed=0)
        self.base.setdefault(task, metrics)
        entry = {}
        for name in SHOWN:
            apart = (metrics[name] - self.base[task][name]).interval()
            entry[name] = [metrics[name].interval().mean, apart.mean, apart.low, apart.high]
        return entry


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
