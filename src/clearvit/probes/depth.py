"""Depth from frozen tokens: ridge regression to log depth, or 256 bins trained with two losses.

The second follows the linear depth probe of DINOv2 (arXiv 2304.07193) on NYUv2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.datasets.splits import DepthSplit
from clearvit.errors import ImageError
from clearvit.probes.features import Features
from clearvit.probes.linear import LinearHead, Ridge, fold_batch_norm
from clearvit.probes.metrics import depth_errors
from clearvit.probes.patches import patch_means, resize_nearest
from clearvit.probes.sgd import make_head, shuffle_batches

BINS, BATCH, LR, WEIGHT_DECAY = 256, 16, 5e-3, 0.01
STEPS = 2000
WARMUP = 12_800 / 30_000  # fraction of the iterations in which the learning rate rises
UPSAMPLING = 4
EIGEN = (slice(45, 471), slice(41, 601))  # of 480 x 640 images
Depth = Callable[[Tensor], Tensor]
"""Maps tokens (B, C, H, W) to depths (B, height, width) in meters."""


@dataclass(frozen=True)
class LogDepth:
    """Depth as the exponential of a linear map of each patch."""

    head: LinearHead

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, C, H, W) to depths (B, H, W)."""
        return self.head.on_map(tokens)[:, 0].clamp(-10, 10).exp()


@dataclass(frozen=True)
class Bins:
    """Depth as the mean of uniform bins under linearly normalized scores."""

    head: LinearHead
    nearest: float
    farthest: float

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, C, H, W) to depths (B, 4 H, 4 W)."""
        return expected_depth(self.head.on_map(tokens), self.nearest, self.farthest)


def expected_depth(scores: Tensor, nearest: float, farthest: float) -> Tensor:
    """Turn scores of bins (B, K, H, W) into depths (B, 4 H, 4 W).

    The published head upsamples the tokens before its linear map; bilinear weights sum to 1, so
    upsampling the scores is the same and costs less.
    """
    scores = F.interpolate(scores, scale_factor=UPSAMPLING, mode="bilinear", align_corners=False)
    weights = scores.relu() + 0.1
    weights = weights / weights.sum(1, keepdim=True)
    bins = torch.linspace(nearest, farthest, scores.shape[1], device=scores.device)
    return torch.einsum("bkhw,k->bhw", weights, bins)


def scale_loss(
    predicted: Tensor, truth: Tensor, *, mean_only: bool = False, ratio: float = 0.15
) -> Tensor:
    """Scale-invariant loss: sqrt(var(g) + 0.15 mean(g)²), g = log predicted - log truth.

    Args:
        predicted: Depths above 0, any shape.
        truth: Depths; pixels that are not above 0 are ignored.
        mean_only: Use sqrt(0.15 mean(g)²) alone, as in the first iterations.
        ratio: Weight of the mean.
    """
    valid = truth > 0
    gap = torch.log(predicted[valid]) - torch.log(truth[valid])
    variance = gap.var() if len(gap) > 1 and not mean_only else gap.new_zeros(())
    return (variance + ratio * gap.mean().square() + 1e-12).sqrt()


def gradient_loss(
    predicted: Tensor, truth: Tensor, *, strides: Sequence[int] = (1, 2, 4, 6)
) -> Tensor:
    """Compare gradients of log depth (B, height, width), two pixels apart, at several strides."""
    total = predicted.new_zeros(())
    for stride in strides:
        small, real = predicted[:, ::stride, ::stride], truth[:, ::stride, ::stride]
        valid = real > 0
        gap = torch.where(valid, small.log() - real.clamp(min=1e-6).log(), 0)
        down = (gap[:, 2:] - gap[:, :-2]).abs() * (valid[:, 2:] & valid[:, :-2])
        across = (gap[:, :, 2:] - gap[:, :, :-2]).abs() * (valid[:, :, 2:] & valid[:, :, :-2])
        total = total + (down.sum() + across.sum()) / valid.sum().clamp(min=1)
    return total


def fit_log_depth(
    features: Features, split: DepthSplit, chosen: Sequence[int], penalty: float
) -> LogDepth:
    """Fit ridge regression from patch tokens to the mean log depth of the patch."""
    ridge: Ridge | None = None
    for index in chosen:
        depth = split.read(index)
        valid = depth > 0
        means, weights = patch_means(np.log(np.where(valid, depth, 1)), valid, features.grid)
        tokens = features.patches([index])[0]
        ridge = ridge or Ridge(tokens.shape[1], 1)
        ridge.add(tokens, means[:, None], weights)
    assert ridge is not None
    return LogDepth(ridge.solve(penalty))


def fit_bins(
    batches: Iterator[tuple[Tensor, Tensor]],
    limits: tuple[float, float],
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Bins:
    """Train 256 bins with scale loss + 0.5 gradient loss, AdamW, cosine decay after warm-up."""
    tokens, depths = next(batches)
    norm, conv = make_head(tokens.shape[1], BINS, seed=seed, device=tokens.device)
    weights = [*norm.parameters(), *conv.parameters()]
    solver = torch.optim.AdamW(weights, LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(solver, lambda i: _lr_factor(i, steps))
    with torch.enable_grad():
        for step in range(steps):
            if step:
                tokens, depths = next(batches)
            predicted = expected_depth(conv(norm(tokens)), *limits)[:, None]
            size = (depths.shape[1], depths.shape[2])
            predicted = F.interpolate(predicted, size, mode="bilinear", align_corners=False)[:, 0]
            early = step < min(100, steps // 10)
            loss = scale_loss(predicted, depths, mean_only=early)
            loss = loss + 0.5 * gradient_loss(predicted, depths)
            solver.zero_grad()
            loss.backward()
            solver.step()
            schedule.step()
    return Bins(fold_batch_norm(norm, conv), *limits)


def _lr_factor(step: int, steps: int) -> float:
    rise = max(1, round(WARMUP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def depth_batches(
    features: Features, split: DepthSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read patches joined with the class token, and depths at the size that the network saw."""

    @lru_cache(maxsize=512)
    def depth(index: int) -> Tensor:
        return torch.from_numpy(resize_nearest(split.read(index), features.size)).float()

    for some in shuffle_batches(chosen, BATCH, np.random.default_rng(seed)):
        tokens = features.map(some, cls=True)
        yield tokens.to(device), torch.stack([depth(i) for i in some]).to(device)


def measure_depth(
    predictor: Depth, features: Features, split: DepthSplit, *, cls: bool, eigen_crop: bool
) -> NDArray[np.float64]:
    """Measure every image, rows of `depth_errors`, (V, 6)."""
    rows = []
    for index in range(len(split)):
        truth = split.read(index)
        predicted = predictor(features.map([index], cls=cls))[:, None]
        resized = F.interpolate(predicted, truth.shape, mode="bilinear", align_corners=False)[0, 0]
        clamped = resized.double().cpu().numpy().clip(split.nearest, split.farthest)
        rows.append(
            depth_errors(clamped, _eigen_crop(truth, split, index) if eigen_crop else truth)
        )
    return np.stack(rows)


def _eigen_crop(truth: NDArray[np.float64], split: DepthSplit, index: int) -> NDArray[np.float64]:
    if truth.shape != (480, 640):
        raise ImageError(
            f"'{split.depths[index]}' has {truth.shape[0]} x {truth.shape[1]} pixels; the"
            " Eigen crop is defined for 480 x 640. Leave out eigen_crop."
        )
    kept = np.zeros_like(truth)
    kept[EIGEN] = truth[EIGEN]
    if not kept.any():
        raise ImageError(f"'{split.depths[index]}' has no valid depth inside the Eigen crop.")
    return kept
