"""Boxes and masks on a grid of patches, and CorLoc to measure them.

Boxes are (x0, y0, x1, y1), the ends exclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.guarded_timm import import_torchvision
from clearvit.errors import ModelError

Grid = tuple[int, int]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class GridObject:
    """One object on a grid of H x W patches."""

    box: tuple[int, int, int, int]  # (x0, y0, x1, y1) in patches, ends exclusive
    seed: int  # row-major index of the patch that the object grew from
    mask: Tensor  # (H, W) bool, the connected patches around the seed
    score: float  # confidence; comparable within one method only
    degenerate: bool = False  # the features do not separate the patches


def connected_component(mask: Tensor, seed: int) -> Tensor:
    """Keep the 4-connected part of a mask (H, W) around a patch; outside the mask, that patch."""
    padded = np.pad(mask.cpu().numpy(), 1)  # no neighbor of a patch leaves the padded grid
    width = padded.shape[1]
    row, column = divmod(seed, mask.shape[1])
    start = (row + 1) * width + column + 1
    unseen = bytearray(padded.tobytes())
    kept, queue = bytearray(len(unseen)), [start] if unseen[start] else []
    kept[start], unseen[start] = 1, 0
    while queue:
        index = queue.pop()
        for near in (index - width, index + width, index - 1, index + 1):
            if unseen[near]:
                kept[near], unseen[near] = 1, 0
                queue.append(near)
    component = np.frombuffer(kept, dtype=bool).reshape(padded.shape)
    return torch.from_numpy(component[1:-1, 1:-1].copy())


def enclosing_box(mask: Tensor) -> tuple[int, int, int, int]:
    """Enclose the True cells of a mask (H, W): (x0, y0, x1, y1), ends exclusive."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def to_pixels(box: Sequence[float], grid: Sequence[int], size: Sequence[float]) -> Box:
    """Convert a box in patches of a grid (H, W) to pixels of an image (height, width)."""
    across, down = size[1] / grid[1], size[0] / grid[0]
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def check_grid(features: Tensor, grid: Sequence[int]) -> Grid:
    """Return the grid as (H, W) if the features (N, C) fit it and are finite."""
    rows, columns = int(grid[0]), int(grid[1])
    if features.ndim != 2 or len(features) != rows * columns or not len(features):
        raise ModelError(
            f"features of shape {tuple(features.shape)} do not fit a grid of {rows} x {columns};"
            " give (N, C) with N = rows x columns, without class token and registers."
        )
    # A finite sum has finite terms, and costs a fiftieth of checking each of them.
    if not bool(torch.isfinite(features.sum())) and not bool(torch.isfinite(features).all()):
        raise ModelError("features hold NaN or infinity; run the network in float32.")
    return rows, columns


def best_iou(box: Any, truth: Any) -> float:
    """Give the largest IoU of one box (4,) with some boxes (M, 4); 0 if there are none."""
    one, others = (torch.as_tensor(np.asarray(b), dtype=torch.float64) for b in (box, truth))
    if not others.numel():
        return 0.0
    box_iou = import_torchvision().ops.box_iou
    return float(box_iou(one.view(1, 4), others.view(-1, 4)).nan_to_num().max())


def correct_localizations(
    predicted: Sequence[Any], truth: Sequence[Any], *, threshold: float = 0.5
) -> NDArray[np.bool_]:
    """Tell for each image whether its box overlaps a ground-truth box enough, (I,).

    Args:
        predicted: One box (4,) per image, or several (K, 4) of which the first counts, or None.
        truth: The ground-truth boxes (M, 4) of each image, in the same units.
        threshold: Smallest IoU of a correct box.
    """
    if len(predicted) != len(truth):
        raise ModelError(
            f"{len(predicted)} predictions for {len(truth)} images with boxes; give one box"
            " per image, None where nothing was found."
        )
    correct = []
    for box, boxes in zip(predicted, truth, strict=True):
        first = np.asarray([] if box is None else box, dtype=np.float64).reshape(-1, 4)[:1]
        correct.append(bool(len(first)) and best_iou(first, boxes) >= threshold)
    return np.array(correct, dtype=bool)


def corloc(predicted: Sequence[Any], truth: Sequence[Any], *, threshold: float = 0.5) -> float:
    """Percentage of images whose box is correct, 0 to 100 (CorLoc).

    An image without ground-truth boxes cannot be correct: leave such images out beforehand.

    Args:
        predicted: One box (4,) per image, or several (K, 4) of which the first counts, or None.
        truth: The ground-truth boxes (M, 4) of each image, in the same units.
        threshold: Smallest IoU of a correct box.
    """
    if not len(truth):
        raise ModelError("CorLoc of no images is not defined; give at least one.")
    return 100.0 * float(correct_localizations(predicted, truth, threshold=threshold).mean())
