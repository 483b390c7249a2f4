"""Unsupervised segmentation of single images: k-means over the patches of one image."""

from __future__ import annotations

import warnings

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.datasets.splits import MaskSplit
from clearvit.errors import ImageError, missing_extra
from clearvit.probes.features import Features
from clearvit.probes.metrics import confusion_matrix
from clearvit.probes.patches import patch_index

Floats = NDArray[np.float64]
RESTARTS = 4  # the best of these runs of k-means is taken


def kmeans(points: Tensor, k: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Cluster points (N, C) into at most k clusters, (N,) from 0; needs scikit-learn."""
    try:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
    except ImportError as error:
        raise missing_extra("scikit-learn", "evaluate", "k-means") from error

    values = points.detach().double().cpu().numpy()
    solver = KMeans(min(k, len(values)), n_init=RESTARTS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        found: NDArray[np.int64] = solver.fit_predict(values).astype(np.int64)
    return found


def matched_iou(clusters: NDArray[np.int64], mask: NDArray[np.int64]) -> float:
    """Mean IoU in percent over the classes of a mask, each matched to a cluster of its own.

    The matching is the one-to-one assignment with the largest sum of IoU; needs scipy.

    Args:
        clusters: A cluster for each pixel, (height, width).
        mask: Classes from 0, below 0 where void, (height, width); not all of it is void.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise missing_extra("scipy", "evaluate", "matching clusters to classes") from error

    classes, truth = np.unique(mask[mask >= 0], return_inverse=True)
    found, predicted = np.unique(clusters[mask >= 0], return_inverse=True)
    size = max(len(classes), len(found))
    table = confusion_matrix(predicted.ravel(), truth.ravel(), size).astype(np.float64)
    union = table.sum(1, keepdims=True) + table.sum(0, keepdims=True) - table
    iou = np.where(union > 0, table / np.maximum(union, 1), 0.0)
    rows, columns = linear_sum_assignment(iou, maximize=True)
    return float(100 * iou[rows, columns][: len(classes)].mean())


def score_clusters(
    tokens: Tensor, grid: tuple[int, int], mask: NDArray[np.int64], seed: int
) -> Floats:
    """Cluster one image into as many parts as its mask has classes, and score them.

    Args:
        tokens: Patch tokens, (N, C).
        grid: (H, W) in patches.
        mask: Classes from 0, below 0 where void, (height, width).
        seed: Seed of the first centers.

    Returns:
        Mean IoU in percent, and 1; zeros if the mask has fewer than two classes, (2,).
    """
    count = len(np.unique(mask[mask >= 0]))
    if count < 2:
        return np.zeros(2)
    clusters = kmeans(F.normalize(tokens, dim=1), count, seed=seed)
    pixels = clusters[patch_index((mask.shape[0], mask.shape[1]), grid)]
    return np.array([matched_iou(pixels, mask), 1.0])


def measure_clusters(features: Features, split: MaskSplit, *, seed: int = 0) -> Floats:
    """Cluster and score every image, rows of `score_clusters`, (V, 2)."""
    rows = [
        score_clusters(features.patches([index])[0], features.grid, split.read(index), seed)
        for index in range(len(split))
    ]
    whole = np.stack(rows)
    if not whole[:, 1].any():
        raise ImageError(
            f"no mask of '{split.name}' has two classes, so there is nothing to cluster; pixels of"
            " 255 are void."
        )
    return whole
