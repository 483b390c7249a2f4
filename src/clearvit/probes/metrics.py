"""The metrics that papers report, each a function of sums over images.

An image contributes a row of numbers; the metric is a function of the sum of the rows. So the same
rows give the value, its interval over resampled images, and any subset of the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
BOUNDARY = 0.02  # of the diagonal: how far from an edge pixels count for boundary IoU
DEPTH_METRICS = ("RMSE", "AbsRel", "delta1", "delta2", "delta3")


def confusion_matrix(predicted: Integers, truth: Integers, classes: int) -> Integers:
    """Count pixels by true class (rows) and predicted class (columns), (K, K).

    Args:
        predicted: Classes from 0, any shape.
        truth: Classes from 0; pixels below 0 are void and count for nothing.
        classes: Number of classes K.
    """
    valid = truth >= 0
    pairs = truth[valid] * classes + predicted[valid]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def segmentation_counts(predicted: Integers, truth: Integers, classes: int) -> Floats:
    """Count in one image, (6 K,): hits, true and predicted pixels of each class; then at its edges.

    The second half is that of boundary IoU (Cheng et al., CVPR 2021): only pixels of a class that
    lie within 2 % of the image's diagonal of the edge of its region count, in the true and in the
    predicted mask.
    """
    confusion = confusion_matrix(predicted, truth, classes)
    parts = [np.diag(confusion), confusion.sum(1), confusion.sum(0)]
    edges = np.zeros((3, classes), dtype=np.int64)
    width = max(1, round(BOUNDARY * float(np.hypot(*truth.shape))))
    known = truth >= 0
    for one in np.union1d(truth[known], predicted[known]):
        real = boundary(truth == one, width) & known
        found = boundary(predicted == one, width) & known
        edges[:, one] = (real & found).sum(), real.sum(), found.sum()
    return np.concatenate([*parts, *edges]).astype(np.float64)


def boundary(mask: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Mark the pixels of a region within `width` pixels of its edge, (height, width) bool.

    The border of the image is an edge. Distances are along rows or columns, whichever is larger.
    """
    outside = np.pad(~mask, width, constant_values=True)
    for axis in (
        0,
        1,
    ):  # is there an outside pixel within the window, along one axis after the other
        sums = np.cumsum(outside, axis=axis, dtype=np.int32)
        ends = np.take(sums, np.arange(2 * width, outside.shape[axis]), axis)
        starts = np.take(sums, np.arange(outside.shape[axis] - 2 * width), axis)
        first = np.take(outside, np.arange(outside.shape[axis] - 2 * width), axis)
        outside = ends - starts + first > 0
    edge: NDArray[np.bool_] = mask & outside
    return edge


def segmentation_metrics(
    sums: Floats, classes: Sequence[str], subset: Sequence[int] = ()
) -> Mapping[str, Floats]:
    """Give mIoU, mAcc, pixel accuracy and boundary IoU in percent for sums of rows, (…, 6 K).

    A class that occurs in no image takes no part in a mean. With a subset, its mIoU and boundary
    IoU too.
    """
    hits, true, predicted, *edges = np.split(sums, 6, axis=-1)
    assert hits.shape[-1] == len(classes)
    iou, edge_iou = _iou(hits, true, predicted), _iou(*edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = np.where(true > 0, 100 * hits / true, np.nan)
    found = {"mIoU": _means(iou), "mAcc": _means(recall)}
    found["pixels"] = 100 * hits.sum(-1) / np.maximum(true.sum(-1), 1)
    found["boundary IoU"] = _means(edge_iou)
    if subset:
        found[f"mIoU of {len(subset)}"] = _means(iou[..., list(subset)])
        found[f"boundary IoU of {len(subset)}"] = _means(edge_iou[..., list(subset)])
    return found


def _iou(hits: Floats, true: Floats, predicted: Floats) -> Floats:
    """Intersection over union in percent; NaN where there is neither."""
    union = true + predicted - hits
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Floats = np.where(union > 0, 100 * hits / union, np.nan)
    return ratio


def depth_errors(predicted: Floats, truth: Floats) -> Floats:
    """Measure one image: its five metrics over valid pixels (truth above 0), and 1, (6,)."""
    valid = truth > 0
    predicted, real = predicted[valid], truth[valid]
    ratio = np.maximum(predicted / real, real / predicted)
    deltas = [(ratio < 1.25**power).mean() for power in (1, 2, 3)]
    rmse = np.sqrt(np.mean((predicted - real) ** 2))
    return np.array([rmse, np.mean(np.abs(predicted - real) / real), *deltas, 1.0])


def depth_metrics(sums: Floats) -> Mapping[str, Floats]:
    """Average over images: RMSE in meters, AbsRel, and fractions within 1.25, 1.25², 1.25³."""
    return {name: sums[..., i] / sums[..., -1] for i, name in enumerate(DEPTH_METRICS)}


def pck(predicted: Floats, truth: Floats, threshold: float) -> float:
    """Percent of points (M, 2) that lie within `threshold` of their true positions (M, 2)."""
    distances = np.linalg.norm(predicted - truth, axis=1)
    return float(100 * np.mean(distances <= threshold))


def _means(values: Floats) -> Floats:
    """Average over the last axis without NaN; NaN where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(-1)
    total = np.where(known, values, 0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
