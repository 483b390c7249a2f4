"""Which classifier, how fine, sharpened or not: by examples that are held out.

Examples are left out by turns, whole images where every class has others, halves of the labelled
pixels where a class has one image only; these choose how fine and whether to sharpen, but not the
classifier. The preferred candidate is kept unless another is better on the held-out examples by
more than resampling explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.probes.metrics import confusion_matrix
from clearvit.probes.patches import resize_nearest
from clearvit.segmentation.annotations.labelled import Integers
from clearvit.segmentation.config import Method
from clearvit.segmentation.labelled_examples import Examples
from clearvit.segmentation.patch_sets import MaskReader, split_halves
from clearvit.stats import quantile_interval, resample

FOLDS = 8  # at most; with more examples several are held out at once
EVALUATED = 320  # pixels of the longer side at which held-out masks are compared
RESAMPLES = 1000
SURE = 0.8  # fraction of resamples in which a candidate must beat the preferred one

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """One way to make masks, and how good it was on held-out examples."""

    method: Method
    scale: int = 1
    refine: bool = False
    miou: float = float("nan")  # percent
    low: float = float("nan")  # 95 % interval over resampled examples
    high: float = float("nan")

    def __str__(self) -> str:
        fine = f", scale {self.scale}" if self.scale > 1 else ""
        return f"{self.method}{fine}{', sharpened' if self.refine else ''}"


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what it was chosen from."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    held_out: str  # what was held out, in words

    def __str__(self) -> str:
        best = self.chosen
        if np.isnan(best.miou):
            return f"{best}, with {self.held_out}"
        return (
            f"{best}: mIoU {best.miou:.1f} ({best.low:.1f} to {best.high:.1f}) on {self.held_out}"
        )


@dataclass(frozen=True)
class Item:
    """An example, or half of its labelled pixels, that is held out together with its fold."""

    index: int
    half: int | None
    fold: int


def group_held_out(examples: Examples) -> tuple[Item, ...]:
    """Decide what is held out together, so that every class keeps labelled pixels."""
    there = np.array(examples.pixels) > 0  # (images, K)
    alone = there & (there.sum(0) == 1)
    rows: list[tuple[int, int | None]] = []
    for index in range(len(examples)):
        halves: tuple[int | None, ...] = (0, 1) if alone[index].any() else (None,)
        rows += [(index, half) for half in halves]
    folds = min(FOLDS, len(rows))
    return tuple(Item(index, half, n % folds) for n, (index, half) in enumerate(rows))


def methods_to_try(methods: Sequence[Method], items: Sequence[Item]) -> Sequence[Method]:
    """Give the methods that the items can tell apart: all of them, or the preferred one.

    Halves of one image do not tell what carries over to another image. There the probe wins by what
    is special about the image, and loses on others.
    """
    whole = all(item.half is None for item in items)
    return methods if whole else methods[:1]


def describe_items(items: Sequence[Item]) -> str:
    """Say in words what was held out."""
    folds = len({item.fold for item in items})
    images = len({item.index for item in items})
    if all(item.half is not None for item in items):
        what = "halves of the labels"
    elif any(item.half is not None for item in items):
        what = "images, or halves of the labels of a class with one image"
    else:
        what = "images"
    said = f"held-out {what} ({images} example{'s' * (images != 1)}, {folds} folds)"
    if any(item.half is not None for item in items):
        said += "; too high, since the other half of an image is no new scene"
    return said


def mask_reader(examples: Examples, item: Item) -> MaskReader:
    """Read the mask of an item: of half an example only its own pixels."""

    def read(index: int) -> Integers:
        mask = examples.read(index)
        if item.half is not None:
            mask = np.where(split_halves(mask) == item.half, mask, -1)
        return mask

    return read


def resize_evaluated(mask: Integers) -> Integers:
    """Make a mask small enough to compare many."""
    factor = min(1.0, EVALUATED / max(mask.shape))
    height, width = (max(1, round(side * factor)) for side in mask.shape)
    small: Integers = resize_nearest(mask, (height, width)).astype(np.int64)
    return small


def count_pixels(predicted: NDArray[np.uint8], truth: Integers, classes: int) -> Floats:
    """Count hits, true and predicted pixels of each class, (3 K,)."""
    table = confusion_matrix(predicted.astype(np.int64), truth, classes)
    return np.concatenate([np.diag(table), table.sum(1), table.sum(0)]).astype(np.float64)


def mean_iou(sums: Floats) -> Floats:
    """Mean IoU in percent over classes that occur, for sums (…, 3 K)."""
    hits, true, predicted = np.split(sums, 3, axis=-1)
    union = true + predicted - hits
    with np.errstate(invalid="ignore", divide="ignore"):
        iou = np.where(true > 0, 100 * hits / union, np.nan)
    there = ~np.isnan(iou)
    total = np.where(there, iou, 0).sum(-1)
    mean: Floats = np.where(there.any(-1), total / np.maximum(there.sum(-1), 1), np.nan)
    return mean


def resampled_ious(rows: Floats) -> Floats:
    """Mean IoU of resampled items, (RESAMPLES,); the same samples for every candidate."""
    chunks = resample(len(rows), RESAMPLES, seed=0)
    return np.concatenate([mean_iou(counts @ rows) for counts in chunks])


class Judge:
    """Compares candidates on the same held-out items."""

    def __init__(self, measure: Callable[[Candidate], Floats]) -> None:
        self._measure = measure
        self._ious: dict[str, Floats] = {}
        self._rated: dict[str, Candidate] = {}

    @property
    def tried(self) -> tuple[Candidate, ...]:
        """All candidates that were measured."""
        return tuple(self._rated.values())

    def rate(self, candidate: Candidate) -> Candidate:
        """Measure a candidate once, and give it with its numbers."""
        key = str(candidate)
        if key not in self._rated:
            rows = self._measure(candidate)
            self._ious[key] = resampled_ious(rows)
            low, high = quantile_interval(self._ious[key])
            found = float(mean_iou(rows.sum(0)))
            self._rated[key] = replace(candidate, miou=found, low=low, high=high)
        return self._rated[key]

    def better(self, preferred: Candidate, other: Candidate) -> Candidate:
        """Give `other` only if it beats the preferred one in most resamples."""
        first, second = self.rate(preferred), self.rate(other)
        apart = self._ious[str(other)] - self._ious[str(preferred)]
        known = apart[~np.isnan(apart)]
        return second if len(known) and float((known > 0).mean()) >= SURE else first


def choose(
    judge: Judge, methods: Sequence[Method], scales: Sequence[int], refines: Sequence[bool]
) -> Candidate:
    """Choose step by step: the method, then the scale, then whether to sharpen.

    The first of each list is preferred.
    """
    best = Candidate(methods[0], scales[0], refines[0])
    for options in _steps(methods, scales, refines):
        for change in options[1:]:
            best = judge.better(best, replace(best, **change))
    return judge.rate(best)


def _steps(
    methods: Sequence[Method], scales: Sequence[int], refines: Sequence[bool]
) -> Iterator[list[dict[str, Any]]]:
    yield [{"method": one} for one in methods]
    yield [{"scale": one} for one in scales]
    yield [{"refine": one} for one in refines]
