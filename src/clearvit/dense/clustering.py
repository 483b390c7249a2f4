"""Do the patches of one image fall into its parts by themselves? k-means without any label."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.dense.features import Features
from clearvit.dense.metrics import confusion_matrix
from clearvit.dense.patches import patch_index
from clearvit.dense.splits import MaskSplit

Floats = NDArray[np.float64]


def kmeans(points: Tensor, k: int, *, seed: int = 0, restarts: int = 4, steps: int = 50) -> Tensor:
    """Split points (N, C) into k clusters of small squared distance, (N,) from 0.

    Starts are drawn by k-means++; the best of some restarts is returned. Distances are computed in
    float64, so that the same seed gives the same clusters on every machine.
    """
    chance = torch.Generator().manual_seed(seed)
    values = points.detach().double().cpu()
    k = min(k, len(values))
    best, least = torch.zeros(len(values), dtype=torch.long), float("inf")
    for _ in range(restarts):
        centres = _starts(values, k, chance)
        owner = torch.full((len(values),), -1)
        for _ in range(steps):
            distances, now = _nearest(values, centres)
            if torch.equal(now, owner):
                break
            owner = now
            sums = torch.zeros_like(centres).index_add_(0, owner, values)
            counts = torch.bincount(owner, minlength=k)[:, None]
            centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
        total = float(distances.sum())
        if total < least:
            best, least = owner, total
    return best


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    squared = (
        points.square().sum(1, keepdim=True) - 2 * points @ centres.T + centres.square().sum(1)
    )
    found = squared.clamp(min=0).min(1)
    return found.values, found.indices


def _starts(points: Tensor, k: int, chance: torch.Generator) -> Tensor:
    """Draw centres one after the other, far points first (k-means++)."""
    chosen = [int(torch.randint(len(points), (1,), generator=chance))]
    while len(chosen) < k:
        distances = _nearest(points, points[chosen])[0]
        if float(distances.sum()) == 0:  # fewer different points than clusters
            chosen.append(chosen[0])
        else:
            chosen.append(int(torch.multinomial(distances, 1, generator=chance)))
    return points[chosen]


def assigned(gains: Floats) -> NDArray[np.int64]:
    """Match each row of a square table to a column of its own, for the largest sum (Hungarian).

    Args:
        gains: What a row and a column are worth together, (K, K).

    Returns:
        The column of each row, (K,).
    """
    size = len(gains)
    cost = gains.max(initial=0.0) - gains
    rows, columns = np.zeros(size + 1), np.zeros(size + 1)
    owner = np.zeros(size + 1, dtype=np.int64)  # row of each column, from 1; 0 is nobody
    for row in range(1, size + 1):
        owner[0] = row
        slack, before = np.full(size + 1, np.inf), np.zeros(size + 1, dtype=np.int64)
        done = np.zeros(size + 1, dtype=bool)
        column = 0
        while owner[column]:
            done[column] = True
            free = np.flatnonzero(~done[1:]) + 1
            reduced = cost[owner[column] - 1, free - 1] - rows[owner[column]] - columns[free]
            closer = reduced < slack[free]
            slack[free[closer]], before[free[closer]] = reduced[closer], column
            nearest = int(free[slack[free].argmin()])
            step = slack[nearest]
            rows[owner[done]] += step
            columns[done] -= step
            slack[free] -= step
            column = nearest
        while column:  # pass the columns on along the path that was found
            owner[column], column = owner[before[column]], int(before[column])
    found = np.zeros(size, dtype=np.int64)
    found[owner[1:] - 1] = np.arange(size)
    return found


def matched_iou(clusters: NDArray[np.int64], mask: NDArray[np.int64]) -> float:
    """Mean IoU in percent over the classes of a mask, each matched to a cluster of its own.

    Args:
        clusters: A cluster for each pixel, (height, width).
        mask: Classes from 0, below 0 where void, (height, width); not all of it is void.
    """
    classes, truth = np.unique(mask[mask >= 0], return_inverse=True)
    found, guess = np.unique(clusters[mask >= 0], return_inverse=True)
    size = max(len(classes), len(found))
    table = confusion_matrix(guess.ravel(), truth.ravel(), size).astype(np.float64)
    union = table.sum(1, keepdims=True) + table.sum(0, keepdims=True) - table
    iou = np.where(union > 0, table / np.maximum(union, 1), 0.0)
    return float(100 * iou[np.arange(size), assigned(iou)][: len(classes)].mean())


def clustered_row(
    tokens: Tensor, grid: tuple[int, int], mask: NDArray[np.int64], seed: int
) -> Floats:
    """Cluster one image into as many parts as its mask has classes.

    Args:
        tokens: Patch tokens, (N, C).
        grid: (H, W) in patches.
        mask: Classes from 0, below 0 where void, (height, width).
        seed: Of the starts.

    Returns:
        Mean IoU in percent, and 1; zeros if the mask has fewer than two classes, (2,).
    """
    count = len(np.unique(mask[mask >= 0]))
    if count < 2:
        return np.zeros(2)
    owner = kmeans(F.normalize(tokens, dim=1), count, seed=seed).numpy()
    pixels = owner[patch_index((mask.shape[0], mask.shape[1]), grid)]
    return np.array([matched_iou(pixels, mask), 1.0])


def measure_clusters(features: Features, split: MaskSplit, *, seed: int = 0) -> Floats:
    """Cluster every image, rows of `clustered_row`, (V, 2)."""
    rows = [
        clustered_row(features.patches([index])[0], features.grid, split.read(index), seed)
        for index in range(len(split))
    ]
    return np.stack(rows)
