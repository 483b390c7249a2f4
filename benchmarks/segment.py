"""Masks by example on PASCAL VOC: methods, features, strokes and confidence over ten draws.

    python benchmarks/segment.py --work WORK --part methods|auto|strokes
    python benchmarks/segment.py --page      # docs/results/segment.md from benchmarks/results/

Seven classes (background and six that are well populated; everything else is background), 1, 5 or
20 examples of each class drawn from the training images, measured on every second validation image
at 320 pixels. Settings of the methods were chosen on training images only. WORK keeps the features.
"""

from __future__ import annotations

import argparse
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt, maximum_filter

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import load_image
from clearvit.probes.features import use_whole_image
from clearvit.probes.metrics import segmentation_counts
from clearvit.segmentation.annotations.drawing import draw_stroke
from clearvit.segmentation.class_maps import enlarge, map_classes, measure_confidence, sharpen
from clearvit.segmentation.fit_examples import PARTS
from clearvit.segmentation.method_choice import (
    Candidate,
    Item,
    Judge,
    choose,
    count_pixels,
    group_held_out,
    methods_to_try,
    resize_evaluated,
)
from clearvit.segmentation.patch_classifiers import METHODS, fit_classifier, mix
from clearvit.segmentation.patch_sets import collect, split_halves
from clearvit.segmentation.sparse_labels import collect_filled
from data import DATA, data_path
from evidence import read_result, write_result
from render import render
from view_features import Recipe, extract, stored_features

NAMES = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
K, SIZE, DRAWS, SHOTS = len(NAMES), 224, 10, (1, 5, 20)
ONE, FINE, LARGER = Recipe("raw"), Recipe("fine", 4, "lattice", 2), Recipe("larger", size=448)
FEATURES = {
    "raw": ("raw", ONE, False),
    "cured": ("cured", ONE, False),
    "fine": ("raw", FINE, False),
    "fine, cured": ("cured", FINE, False),
    "fine, cured, sharpened": ("cured", FINE, True),
    "raw at 448 px (control)": ("raw", LARGER, False),
}
STROKES, RADIUS = 3, 3


class Voc:
    """Masks of seven classes, and features of every kind."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.splits = {n: read_masks(options.data / "voc", split=n) for n in ("train", "val")}
        self.work, self.shots, self.kinds = options.work, options.shots, options.features
        self.draws = options.draws
        self.models = {"raw": cv.load("demo"), "cured": cv.load("demo", cure=True)}
        self.models = {name: use_whole_image(model) for name, model in self.models.items()}
        self.tested = range(0, len(self.splits["val"]), 2)
        self.present = [set(np.unique(self.mask("train", i))) for i in range(len(self.split()))]

    def split(self) -> Any:
        """The training images."""
        return self.splits["train"]

    @cache  # noqa: B019
    def mask(self, split: str, index: int) -> Any:
        """A mask of the seven classes at 320 pixels."""
        found = self.splits[split]
        table = np.zeros(len(found.classes) + 1, dtype=np.int64)
        table[-1] = -1
        for place, name in enumerate(NAMES):
            table[found.classes.index(name)] = place
        return resize_evaluated(table[found.read(index)])

    def features(self, kind: str, split: str) -> Any:
        """Features of one row of the table, computed when they are first asked for."""
        model, recipe, _ = FEATURES[kind]
        work, found, backbone = self.work / model, self.splits[split], self.models[model]
        extract(work, found, [recipe], backbone, SIZE)
        return stored_features(work, found, recipe, backbone, SIZE, {})

    @cache  # noqa: B019
    def image(self, split: str, index: int) -> Any:
        """Colors 0..1 as the network sees them."""
        image = load_image(self.splits[split].images[index])
        return self.models["raw"].preprocessing.resize(image, (SIZE, SIZE)).float() / 255

    def draw(self, shots: int, seed: int) -> list[int]:
        """Draw so many images of every class."""
        rng = np.random.default_rng(seed)
        chosen: set[int] = set()
        for place in range(1, K):
            have = [i for i, found in enumerate(self.present) if place in found]
            chosen |= set(rng.permutation(have)[:shots].tolist())
        return sorted(chosen)


def measure(voc: Voc, kind: str, classify: Any) -> dict[str, Any]:
    """mIoU, boundary IoU, and error and confidence of every validation image."""
    features, sharp = voc.features(kind, "val"), FEATURES[kind][2]
    sums, errors, sure = np.zeros(6 * K), [], []
    for index in voc.tested:
        maps = map_classes(classify, features.patches([index])[0], features.grid)
        if sharp:
            maps = sharpen(maps, voc.image("val", index))
        truth = voc.mask("val", index)
        found = enlarge(maps, truth.shape).astype(np.int64)
        sums += segmentation_counts(found, truth, K)
        errors.append(float((found != truth)[truth >= 0].mean()))
        sure.append(measure_confidence(maps))
    hits, true, predicted, *edges = np.split(sums, 6)
    iou = 100 * hits / (true + predicted - hits)
    edge = 100 * edges[0] / (edges[1] + edges[2] - edges[0])
    lowest = np.argsort(sure)[: len(sure) // 5]
    ratio = float(np.mean(np.array(errors)[lowest]) / np.mean(errors))
    return {"mIoU": float(iou.mean()), "boundary": float(edge.mean()), "ratio": ratio}


def run_methods(voc: Voc) -> list[dict[str, Any]]:
    rows = measured("methods")
    done = {(row["shots"], row["seed"], row["features"], row["method"]) for row in rows}
    for shots in voc.shots:
        for seed in range(voc.draws):
            chosen = voc.draw(shots, seed)
            items = [(i, partial(voc.mask, "train")) for i in chosen]
            for kind in voc.kinds:
                methods = METHODS if kind in ("raw", "fine, cured") else ("probe",)
                missing = [m for m in methods if (shots, seed, kind, m) not in done]
                data = collect(voc.features(kind, "train"), items, K) if missing else None
                for method in missing:
                    found = measure(voc, kind, fit_classifier(method, data))
                    case = {"shots": shots, "seed": seed, "features": kind, "method": method}
                    rows.append({**case, "examples": len(chosen), **found})
            save("methods", rows)
    return rows


class _Pixels:
    def __init__(self, pixels: Any) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)


def run_auto(voc: Voc, kind: str = "raw") -> list[dict[str, Any]]:
    """What `method="auto"` chooses from the examples alone."""
    rows = [row for row in measured("auto") if row["shots"] not in voc.shots]
    features = voc.features(kind, "train")
    for shots in voc.shots:
        for seed in range(voc.draws):
            chosen = voc.draw(shots, seed)
            counts = [np.bincount(m[m >= 0], minlength=K) for m in _masks(voc, chosen)]
            items = group_held_out(_Pixels(counts))  # type: ignore[arg-type]
            data = collect(features, [(chosen[i.index], _reader(voc, i)) for i in items], K)

            @cache
            def fit(method: Any, held_out: Any, data: Any = data) -> Any:
                if method == "mixed":
                    parts = [fit(one, held_out) for one in PARTS]
                    return mix(*parts, data.without(held_out))
                return fit_classifier(method, data.without(held_out))

            def count(
                candidate: Candidate, items: Any = items, fit: Any = fit, chosen: Any = chosen
            ) -> Any:
                found = np.zeros((len(items), 3 * K))
                for fold in {item.fold for item in items}:
                    held_out = tuple(n for n, item in enumerate(items) if item.fold == fold)
                    classify = fit(candidate.method, held_out)
                    for n in held_out:
                        index = chosen[items[n].index]
                        maps = map_classes(classify, features.patches([index])[0], features.grid)
                        truth = _reader(voc, items[n])(index)
                        found[n] = count_pixels(enlarge(maps, truth.shape), truth, K)
                return found

            judge = Judge(count)
            methods = methods_to_try(METHODS, items)
            if len(methods) > 1:
                methods = (choose(judge, methods, (1,), (False,)).method,)
            rows.append({"shots": shots, "seed": seed, "chosen": methods[0]})
            save("auto", rows)
    return rows


def _masks(voc: Voc, chosen: list[int]) -> list[Any]:
    return [voc.mask("train", i) for i in chosen]


def _reader(voc: Voc, item: Item) -> Any:
    def read(index: int) -> Any:
        mask = voc.mask("train", index)
        return mask if item.half is None else np.where(split_halves(mask) == item.half, mask, -1)

    return read


def run_strokes(voc: Voc, kind: str = "fine, cured") -> list[dict[str, Any]]:
    """Three strokes of each class of each example instead of its mask."""
    rows = measured("strokes")
    done = {(row["shots"], row["seed"], row["labels"]) for row in rows}
    features = voc.features(kind, "train")
    for shots in [shots for shots in voc.shots if shots < 20]:
        for seed in range(voc.draws):
            chosen = voc.draw(shots, seed)
            masks = [(i, partial(voc.mask, "train")) for i in chosen]
            drawn = [(i, partial(strokes_of, voc)) for i in chosen]
            ways = {"masks": partial(collect, items=masks)}
            ways["strokes"] = partial(collect_filled, items=drawn)
            for labels in [one for one in ways if (shots, seed, one) not in done]:
                data = ways[labels](features, classes=K)
                found = measure(voc, kind, fit_classifier("mixed", data))
                case = {"shots": shots, "seed": seed, "labels": labels, "method": "mixed"}
                rows.append({**case, **found})
            save("strokes", rows)
    return rows


@cache
def strokes_of(voc: Voc, index: int) -> Any:
    """Draw straight pieces between points of the skeleton, inside the region of each class."""
    mask, rng = voc.mask("train", index), np.random.default_rng(index)
    drawn = np.full(mask.shape, -1, dtype=np.int64)
    for place in np.unique(mask[mask >= 0]):
        region = mask == place
        depth = distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
        ridge = np.argwhere((depth == maximum_filter(depth, 3)) & (depth >= 2))
        if not len(ridge):
            ridge = np.argwhere(depth == depth.max())
        for _ in range(STROKES):
            y0, x0 = ridge[rng.integers(len(ridge))]
            for _ in range(20):  # a partner that can be reached inside the region
                y1, x1 = ridge[rng.integers(len(ridge))]
                steps = np.linspace(0, 1, 50)[:, None]
                line = np.round([y0, x0] + steps * ([y1 - y0, x1 - x0])).astype(int)
                if region[line[:, 0], line[:, 1]].all():
                    break
            else:
                y1, x1 = y0, x0
            points = [[x0 + 0.5, y0 + 0.5], [x1 + 0.5, y1 + 0.5]]
            drawn[draw_stroke(points, RADIUS, mask.shape) & region] = place
    return drawn


def measured(part: str) -> list[dict[str, Any]]:
    """Rows of an earlier run, which are not measured again."""
    return read_result(f"segment-{part}").get("rows", [])


def save(part: str, rows: list[dict[str, Any]]) -> None:
    content = {"date": time.strftime("%Y-%m-%d"), "size": SIZE, "part": part, "rows": rows}
    seeds = sorted({row["seed"] for row in rows})
    write_result(f"segment-{part}", content, data=["voc"], seeds=seeds, models=["demo"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/segment"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--part", choices=("methods", "auto", "strokes"), default="methods")
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS, help="some of the rows")
    parser.add_argument("--draws", type=int, default=DRAWS, help="samples of examples")
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        render("segment")
        return
    torch.set_num_threads(1)
    {"methods": run_methods, "auto": run_auto, "strokes": run_strokes}[options.part](Voc(options))


if __name__ == "__main__":
    main()
