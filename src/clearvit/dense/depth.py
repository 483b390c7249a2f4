"""Depth from frozen tokens: a ridge to log depth, or 256 bins trained with two losses.

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

from clearvit.dense.features import Features
from clearvit.dense.linear import LinearHead, Ridge, head_of
from clearvit.dense.metrics import depth_row
from clearvit.dense.patches import patch_means, resized_nearest
from clearvit.dense.sgd import new_head, rounds
from clearvit.dense.splits import DepthSplit
from clearvit.errors import ImageError

BINS, BATCH, RATE, DECAY = 256, 16, 5e-3, 0.01
WARMUP = 12_800 / 30_000  # share of the iterations in which the rate rises
UPSAMPLED = 4
EIGEN = (slice(45, 471), slice(41, 601))  # of 480 x 640 photos
Depth = Callable[[Tensor], Tensor]
"""Maps tokens (B, C, H, W) to depths (B, height, width) in metres."""


@dataclass(frozen=True)
class LogDepth:
    """Depth as the exponential of a linear map of each patch."""

    head: LinearHead

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, C, H, W) to depths (B, H, W)."""
        return self.head.on_map(tokens)[:, 0].clamp(-10, 10).exp()


@dataclass(frozen=True)
class Bins:
    """Depth as the mean of uniform bins under linearly normalised scores."""

    head: LinearHead
    nearest: float
    farthest: float

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, C, H, W) to depths (B, 4 H, 4 W)."""
        return binned(self.head.on_map(tokens), self.nearest, self.farthest)


def binned(scores: Tensor, nearest: float, farthest: float) -> Tensor:
    """Turn scores of bins (B, K, H, W) into depths (B, 4 H, 4 W).

    The published head upsamples the tokens before its linear map; bilinear weights sum to 1, so
    upsampling the scores is the same and costs less.
    """
    scores = F.interpolate(scores, scale_factor=UPSAMPLED, mode="bilinear", align_corners=False)
    shares = scores.relu() + 0.1
    shares = shares / shares.sum(1, keepdim=True)
    bins = torch.linspace(nearest, farthest, scores.shape[1], device=scores.device)
    return torch.einsum("bkhw,k->bhw", shares, bins)


def scale_loss(
    predicted: Tensor, truth: Tensor, *, warm: bool = False, ratio: float = 0.15
) -> Tensor:
    """Scale-invariant loss: sqrt(var(g) + 0.15 mean(g)²), g = log predicted - log truth.

    Args:
        predicted: Depths above 0, any shape.
        truth: Depths; pixels that are not above 0 are ignored.
        warm: The first iterations have sqrt(0.15 mean(g)²) alone.
        ratio: Weight of the mean.
    """
    valid = truth > 0
    gap = torch.log(predicted[valid]) - torch.log(truth[valid])
    spread = gap.var() if len(gap) > 1 and not warm else gap.new_zeros(())
    return (spread + ratio * gap.mean().square() + 1e-12).sqrt()


def gradient_loss(
    predicted: Tensor, truth: Tensor, *, strides: Sequence[int] = (1, 2, 4, 6)
) -> Tensor:
    """Compare slopes of log depth (B, height, width), two pixels apart, at several resolutions."""
    total = predicted.new_zeros(())
    for stride in strides:
        small, real = predicted[:, ::stride, ::stride], truth[:, ::stride, ::stride]
        valid = real > 0
        gap = torch.where(valid, small.log() - real.clamp(min=1e-6).log(), 0)
        down = (gap[:, 2:] - gap[:, :-2]).abs() * (valid[:, 2:] & valid[:, :-2])
        across = (gap[:, :, 2:] - gap[:, :, :-2]).abs() * (valid[:, :, 2:] & valid[:, :, :-2])
        total = total + (down.sum() + across.sum()) / valid.sum().clamp(min=1)
    return total


def fit_log(
    features: Features, split: DepthSplit, chosen: Sequence[int], penalty: float
) -> LogDepth:
    """Fit a ridge from patch tokens to the mean log depth of the patch."""
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
    steps: int,
    seed: int = 0,
) -> Bins:
    """Train 256 bins with scale loss + 0.5 gradient loss, AdamW, and a cosine after warm-up."""
    tokens, depths = next(batches)
    norm, conv = new_head(tokens.shape[1], BINS, seed=seed, device=tokens.device)
    solver = torch.optim.AdamW([*norm.parameters(), *conv.parameters()], RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(solver, lambda i: _rate(i, steps))
    with torch.enable_grad():
        for step in range(steps):
            if step:
                tokens, depths = next(batches)
            guess = binned(conv(norm(tokens)), *limits)[:, None]
            size = (depths.shape[1], depths.shape[2])
            guess = F.interpolate(guess, size, mode="bilinear", align_corners=False)[:, 0]
            warm = step < min(100, steps // 10)
            loss = scale_loss(guess, depths, warm=warm) + 0.5 * gradient_loss(guess, depths)
            solver.zero_grad()
            loss.backward()
            solver.step()
            schedule.step()
    return Bins(head_of(norm, conv), *limits)


def _rate(step: int, steps: int) -> float:
    rise = max(1, round(WARMUP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def depth_batches(
    features: Features, split: DepthSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read tokens with the class token beside each, and depths at the size the network saw."""

    @lru_cache(maxsize=512)
    def depth(index: int) -> Tensor:
        return torch.from_numpy(resized_nearest(split.read(index), features.size)).float()

    for some in rounds(chosen, BATCH, np.random.default_rng(seed)):
        tokens = features.map(some, cls=True)
        yield tokens.to(device), torch.stack([depth(i) for i in some]).to(device)


def measure_depth(
    predictor: Depth, features: Features, split: DepthSplit, *, cls: bool, eigen: bool
) -> NDArray[np.float64]:
    """Rows of `depth_row` for every image, (V, 6)."""
    rows = []
    for index in range(len(split)):
        truth = split.read(index)
        guess = predictor(features.map([index], cls=cls))[:, None]
        resized = F.interpolate(guess, truth.shape, mode="bilinear", align_corners=False)[0, 0]
        clamped = resized.double().cpu().numpy().clip(split.nearest, split.farthest)
        rows.append(depth_row(clamped, _inside(truth, split, index) if eigen else truth))
    return np.stack(rows)


def _inside(truth: NDArray[np.float64], split: DepthSplit, index: int) -> NDArray[np.float64]:
    if truth.shape != (480, 640):
        raise ImageError(
            f"'{split.depths[index]}' has {truth.shape[0]} x {truth.shape[1]} pixels; the"
            " Eigen crop is defined for 480 x 640. Leave out eigen."
        )
    kept = np.zeros_like(truth)
    kept[EIGEN] = truth[EIGEN]
    if not kept.any():
        raise ImageError(f"'{split.depths[index]}' has no valid depth inside the Eigen crop.")
    return kept
