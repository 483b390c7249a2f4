"""From pixels to patches: which patch a pixel belongs to, and the labels of a patch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Grid = tuple[int, int]


def patch_index(size: tuple[int, int], grid: Grid) -> NDArray[np.int64]:
    """Number the patch of each pixel, (height, width); by the pixel's upper left corner."""
    rows = np.arange(size[0]) * grid[0] // size[0]
    columns = np.arange(size[1]) * grid[1] // size[1]
    found: NDArray[np.int64] = rows[:, None] * grid[1] + columns[None, :]
    return found


def patch_labels(mask: NDArray[np.int64], grid: Grid, classes: int) -> tuple[Tensor, Tensor]:
    """Count the classes in each patch.

    Args:
        mask: Classes from 0, below 0 where void, (height, width).
        grid: (H, W) in patches.
        classes: Number of classes K.

    Returns:
        Fraction of each class among the valid pixels, (N, K), and fraction of valid pixels, (N,).
    """
    index, valid, count = patch_index(_size(mask), grid), mask >= 0, grid[0] * grid[1]
    cells = index[valid] * classes + mask[valid]
    table = np.bincount(cells, minlength=count * classes).reshape(count, classes)
    known = table.sum(1)
    sizes = np.bincount(index.ravel(), minlength=count)
    fractions = torch.from_numpy(table / np.maximum(known, 1)[:, None]).float()
    return fractions, torch.from_numpy(known / np.maximum(sizes, 1)).float()


def patch_means(
    values: NDArray[np.float64], valid: NDArray[np.bool_], grid: Grid
) -> tuple[Tensor, Tensor]:
    """Average the valid pixels of each patch, (N,), and give their fraction, (N,)."""
    index, count = patch_index(_size(values), grid), grid[0] * grid[1]
    known = np.bincount(index[valid], minlength=count)
    total = np.bincount(index[valid], weights=values[valid], minlength=count)
    sizes = np.bincount(index.ravel(), minlength=count)
    means = torch.from_numpy(total / np.maximum(known, 1)).float()
    return means, torch.from_numpy(known / np.maximum(sizes, 1)).float()


def resize_nearest(values: NDArray[np.generic], size: tuple[int, int]) -> NDArray[np.generic]:
    """Resize a map to (height, width) by the pixel under each new center; mixes no values."""
    indices = [
        np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.int64), old - 1)
        for new, old in zip(size, values.shape, strict=True)
    ]
    return values[np.ix_(*indices)]


def _size(values: NDArray[np.generic]) -> tuple[int, int]:
    return values.shape[0], values.shape[1]
