"""Do artifacts sit where a patch says the same as its neighbors?

The redundancy test of "Vision Transformers Need Registers" (Darcet et al., arXiv 2309.16588),
with numbers where the paper shows densities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.stats import quantile_interval, resample

ENOUGH_TOKENS = 30
ENOUGH_IMAGES = 5
RESAMPLES = 2000  # of the images, for the interval
NAN = float("nan")


@dataclass(frozen=True)
class Contrast:
    """Neighbor similarity at outlier positions against that at normal ones.

    Numbers of a kind that does not occur are NaN; its density is 0 everywhere.

    Attributes:
        outlier: Mean cosine similarity at outlier positions, -1..1.
        normal: The same at normal positions.
        difference: `outlier` - `normal`.
        interval: 95 % interval of the difference, by resampling images.
        auroc: Chance that an outlier position is more similar than a normal one, 0..1.
        outliers: Number of outlier positions.
        normals: Number of normal positions.
        images: Number of images with outliers.
        edges: Borders of the bins, (bins + 1).
        outlier_density: Density over the bins, with integral 1.
        normal_density: The same for normal positions.
        conclusive: Whether there are enough positions to conclude anything, either way.
        note: Why not, or how many there were.
    """

    outlier: float
    normal: float
    difference: float
    interval: tuple[float, float]
    auroc: float
    outliers: int
    normals: int
    images: int
    edges: tuple[float, ...]
    outlier_density: tuple[float, ...]
    normal_density: tuple[float, ...]
    conclusive: bool
    note: str


def neighbor_similarity(map: Tensor) -> Tensor:
    """Average the cosine similarity of each cell to its upper, lower, left and right neighbor.

    Only neighbors that exist count, so a corner has two. The single cell of a 1 x 1 grid has
    none and gets 1. A zero vector has similarity 0 to everything.

    Args:
        map: Features, (B, C, H, W), of any scale.

    Returns:
        Similarities -1..1, (B, H, W).
    """
    map = map if map.dtype == torch.float64 else map.float()
    largest = map.abs().amax(dim=1, keepdim=True)  # first: squares of the values could overflow
    unit = F.normalize(map / largest.where(largest > 0, 1), dim=1)
    down = (unit[:, :, 1:] * unit[:, :, :-1]).sum(dim=1)  # (B, H - 1, W)
    right = (unit[:, :, :, 1:] * unit[:, :, :, :-1]).sum(dim=1)  # (B, H, W - 1)
    count = _add_to_both(torch.ones_like(down), torch.ones_like(right))
    mean = _add_to_both(down, right) / count.clamp(min=1)
    return mean.where(count > 0, 1).clamp(-1, 1)


def _add_to_both(down: Tensor, right: Tensor) -> Tensor:
    """Add each value between two cells to both of them."""
    vertical = F.pad(down, (0, 0, 0, 1)) + F.pad(down, (0, 0, 1, 0))
    return vertical + F.pad(right, (0, 1)) + F.pad(right, (1, 0))


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Compute the area under the ROC curve: how often a positive outranks a negative.

    The Mann-Whitney statistic, in which a tie counts half. NaN if a class is empty.

    Args:
        scores: Any finite numbers, (M,).
        positive: Which of them are positive, (M,) bool.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return NAN
    _, position, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[position]  # ties share a rank
    above = float(ranks[positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def neighbor_contrast(
    similarity: Tensor, outlier: Tensor, *, seed: int = 0, bins: int = 60
) -> Contrast:
    """Compare the neighbor similarity of outlier and normal positions.

    Args:
        similarity: Of each position to its neighbors, after patch embedding, (I, N).
        outlier: Which positions become outliers, (I, N) bool.
        seed: Of the bootstrap.
        bins: Of the densities, from the smallest to the largest similarity.
    """
    similarity = similarity.double().cpu()
    outlier = outlier.cpu()
    flagged, others = similarity[outlier], similarity[~outlier]
    edges = _edges(similarity, bins)
    images = int(outlier.any(dim=1).sum())
    short = shortage("outlier", len(flagged), images)
    short = short or shortage("normal", len(others), int((~outlier).any(dim=1).sum()))
    return Contrast(
        outlier=float(flagged.mean()),
        normal=float(others.mean()),
        difference=float(flagged.mean() - others.mean()),
        interval=_interval(similarity, outlier, seed),
        auroc=auroc(similarity.flatten(), outlier.flatten()),
        outliers=len(flagged),
        normals=len(others),
        images=images,
        edges=tuple(edges.tolist()),
        outlier_density=_density(flagged, edges),
        normal_density=_density(others, edges),
        conclusive=not short,
        note=short or f"{len(flagged)} outlier tokens in {images} images.",
    )


def shortage(kind: str, tokens: int, images: int) -> str:
    """Say in a sentence why so few tokens of a kind allow no conclusion; empty if they do."""
    if not tokens:
        return f"no {kind} tokens, so there is nothing to compare."
    if tokens >= ENOUGH_TOKENS and images >= ENOUGH_IMAGES:
        return ""
    return (
        f"only {tokens} {kind} token{'s' * (tokens != 1)} in {images} image{'s' * (images != 1)};"
        f" at least {ENOUGH_TOKENS} in {ENOUGH_IMAGES} images are needed to conclude."
    )


def _interval(similarity: Tensor, outlier: Tensor, seed: int) -> tuple[float, float]:
    """Bootstrap the difference of means; tokens of one image are not independent, images are."""
    kinds = torch.stack([outlier, ~outlier]).double()  # (2, I, N)
    sums, counts = ((kinds * part).sum(dim=2).numpy() for part in (similarity, 1.0))  # (2, I)
    if not len(similarity):
        return NAN, NAN
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may hold no outlier at all
        means = [
            (weights @ sums.T) / (weights @ counts.T)
            for weights in resample(len(similarity), RESAMPLES, seed)
        ]
    outliers, others = np.concatenate(means).T
    return quantile_interval(outliers - others)


def _edges(similarity: Tensor, bins: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    low, high = (float(similarity.min()), float(similarity.max())) if similarity.numel() else (0, 1)
    if high - low < 1e-6:  # all alike: numpy could not tell the edges apart
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


def _density(
    values: Tensor, edges: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[float, ...]:
    if not len(values):
        return (0.0,) * (len(edges) - 1)
    density, _ = np.histogram(values.numpy(), edges, density=True)
    return tuple(density.tolist())
