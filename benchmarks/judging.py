"""What one forward pass of a model is worth in tasks, paired with its raw model; used by scripts.

Segmentation is that of finer.py: linear probe and kNN on PASCAL VOC, mean IoU of the seven well
populated classes. A choice is judged on labelled images that train no probe ("choice"), a result on
the test images ("report"). Class tokens: leave-one-out 1-NN, and top-1 of a classifier's own head.
Features and counts lie in WORK: the same command goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.artifacts.outliers import Outliers, find_outliers, relative_norms
from clearvit.backbones.vit import VitBackbone
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit
from clearvit.evaluation.evaluation_table import Result, resample_metrics
from clearvit.precision import autocast, uses_bf16
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.metrics import segmentation_metrics
from clearvit.stats import bootstrap
from finer import POPULATED, bases_of, measure
from view_features import Recipe, extract, stored_features

Part = Literal["choice", "report"]
LABELLED, TESTED = 200, 150  # images
METRICS = ("mIoU of 7", "boundary IoU of 7")
RAW = Recipe("raw")


def splits_of(
    data: Path, part: Part, images: tuple[int, int] = (LABELLED, TESTED)
) -> tuple[MaskSplit, MaskSplit]:
    """Labelled images, and those that judge: other labelled ones for a choice, or test images."""
    train, test = (read_masks(data / "voc", split=name) for name in ("train", "val"))
    chosen = select_evenly(len(train), images[0])
    if part == "report":
        return train.select(chosen), test.select(select_evenly(len(test), images[1]))
    rest = train.select(sorted(set(range(len(train))) - set(chosen)))
    return train.select(chosen), dataclasses.replace(rest, name="rest")


def count_segmentation(
    raw: cv.Backbone,
    recipes: Sequence[Recipe],
    splits: tuple[MaskSplit, MaskSplit],
    work: Path,
    size: int,
) -> dict[str, dict[str, Any]]:
    """Counts of every judging image by name of a recipe and by task ("linear", "kNN")."""
    raw = use_whole_image(raw)
    for split in splits:
        extract(work, split, recipes, raw, size)
    bases = bases_of(raw, size) if any(recipe.directions for recipe in recipes) else {}
    found = {}
    kept = work / ("choice" if splits[1].name == "rest" else "report")
    kept.mkdir(parents=True, exist_ok=True)
    for recipe in recipes:
        features = [stored_features(work, split, recipe, raw, size, bases) for split in splits]
        found[recipe.name] = measure(features, splits, None, kept, recipe)
    return found


def compare_counts(
    own: Sequence[Any], base: Sequence[Any], classes: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Metrics of one or more seeds of a model, and their paired difference to raw with its CI."""
    subset = tuple(classes.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=tuple(classes), subset=subset)
    both = [
        resample_metrics(Result("", 0, rows, summary), seed=0)
        for rows in (own, [base[0]] * len(own))
    ]
    table = {}
    for name in METRICS:
        apart = (both[0][name] - both[1][name]).interval()
        seeds = [round(float(value), 2) for value in both[0][name].values]
        table[name] = {"seeds": seeds, "minus raw": [apart.mean, apart.low, apart.high]}
    return table


def part_of_gain(
    own: Sequence[Any], best: Sequence[Any], base: Sequence[Any], classes: Sequence[str]
) -> list[float]:
    """Which part of the gain in mIoU of another row a row reaches: mean and 95 % CI."""
    subset = tuple(classes.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=tuple(classes), subset=subset)
    found = [
        resample_metrics(Result("", 0, rows[:1], summary), seed=0)[METRICS[0]]
        for rows in (own, best, base)
    ]
    mean = [float(one.values.mean()) for one in found]
    ratios = (found[0].resampled - found[2].resampled) / (found[1].resampled - found[2].resampled)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return [(mean[0] - mean[2]) / (mean[1] - mean[2]), float(low), float(high)]


# --- class tokens ---------------------------------------------------------------------------------


@torch.inference_mode()
def judge_class_token(model: VitBackbone, data: Path, size: int) -> dict[str, np.ndarray]:
    """Whether 1-NN among the others is right, and the model's own head if it has one, (I,) each."""
    paths = sorted((data / "imagenet100").glob("*/*.jpg"))
    truth = np.array([int(path.parent.name) for path in paths])
    tokens, scores = [], []
    classifies = isinstance(getattr(model.network, "head", None), torch.nn.Linear)
    with autocast(model.device, uses_bf16(model.device, "auto")):
        for pixels in model.pixels(paths, size=size, batch=10):
            found = model.forward(pixels)
            tokens.append(found.cls.float())
            if classifies:
                whole = torch.cat([found.prefix, found.patches], 1)
                scores.append(model.network.forward_head(whole.to(pixels.dtype)).float())
    unit = F.normalize(torch.cat(tokens), dim=1)
    near = (unit @ unit.T).fill_diagonal_(-1).argmax(1).numpy()
    right = {"1-NN": (truth[near] == truth).astype(float)}
    if classifies:
        right["top-1"] = (torch.cat(scores).argmax(1).numpy() == truth).astype(float)
    return right


def compare_right(own: Sequence[Any], base: Any) -> dict[str, Any]:
    """Percent right of each seed, and the paired difference to raw with its CI."""
    apart = bootstrap(100 * (np.mean(own, axis=0) - base))
    seeds = [round(float(100 * one.mean()), 1) for one in own]
    return {"seeds": seeds, "minus raw": [apart.mean, apart.low, apart.high]}


# --- high-norm tokens -----------------------------------------------------------------------------


@torch.inference_mode()
def norms_by_block(model: VitBackbone, paths: Sequence[Path], size: int) -> torch.Tensor:
    """Norms of patch tokens before the final norm, (I, L, N)."""
    blocks, found = list(range(model.depth)), []
    for pixels in model.pixels(list(paths), size=size, batch=4):
        with autocast(model.device, uses_bf16(model.device, "auto")):
            tokens = model.forward(pixels, layers=blocks, norm=False)
        found.append(torch.stack([tokens.layers[block].norms for block in blocks], 1).float())
    return torch.cat(found)


def high_norm_tokens(models: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Percent of high-norm tokens by block; `models` are norms (I, L, N), raw first.

    "beyond raw's cutoff": of the tokens beyond the cutoff that was found for the raw model in that
    block, None where it has none. "own": found in the model itself by the definition of an
    artifact token, 0 where there is none.
    """
    raw = next(iter(models.values()))
    cutoffs = [find_outliers(raw[:, block]) for block in range(raw.shape[1])]
    table: dict[str, Any] = {"cutoffs": [found and round(found.cutoff, 2) for found in cutoffs]}
    for name, norms in models.items():
        own = [find_outliers(norms[:, block]) for block in range(norms.shape[1])]
        beyond = [found and _percent(found, norms[:, b]) for b, found in enumerate(cutoffs)]
        table[name] = {
            "beyond raw's cutoff": beyond,
            "own": [_percent(found, norms[:, b]) if found else 0.0 for b, found in enumerate(own)],
            "largest": [round(float(relative_norms(one).max()), 2) for one in norms.unbind(1)],
        }
    return table


def _percent(found: Outliers, norms: torch.Tensor) -> float:
    return round(100 * found.mask(norms).float().mean().item(), 4)
