"""The definition of an artifact token: a patch token whose norm one mode cannot explain.

Norms of patch tokens before the final LayerNorm, relative to the median of their image and in
logarithms, form one mode whose density falls at least exponentially: it is log-concave, so its
hazard rate never falls. The hazard measured inside the mode therefore bounds how many tokens the
mode alone can put beyond any cutoff. Outliers are a group of tokens many times larger than this
bound, while being few. No percentile is fixed: norms with a single mode give no cutoff at all.

Everything that asks which tokens are artifacts asks here. `find_outliers` pools images of one block
and is what `diagnose` reports; `outlier_mask` applies the same rule to each image alone, for code
that sees one image at a time (an index, object discovery), so both can answer "none".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clearvit.stats import quantile_interval, resample

Side = Literal["high", "low"]
SIDES: tuple[Side, ...] = ("high", "low")

LOG_RANGE, BIN_WIDTH = 6.0, 0.01  # histogram of exp(-6) .. exp(6) times the median, in 1 % steps
BINS = round(2 * LOG_RANGE / BIN_WIDTH)
BULK = (0.70, 0.88)  # quantiles between which the hazard is measured; outliers lie beyond
MIN_EXCESS = 10.0  # outliers are this many times more than the mode can explain
MIN_FRACTION, MAX_FRACTION = 0.001, 0.10  # of all tokens; more than a tenth is a population
MIN_COUNT = 3  # tokens
MIN_GAP = 0.1  # an empty stretch of this many e-folds separates two modes
MAX_P = 1e-4  # probability of so many tokens under one mode; small, since many bins are tried
MIN_RATIO = 1.3  # times the median; a smaller difference is no artifact whatever its significance
RESAMPLES = 100
MIN_IMAGES = 8  # with fewer, tokens are resampled instead of images


@dataclass(frozen=True)
class Outliers:
    """Tokens on one side of the mode that it cannot explain."""

    side: Side
    cutoff: float  # times the median norm of the image; tokens beyond it are outliers
    fraction: float  # of all tokens
    interval: tuple[float, float]  # 95 % CI of the fraction, over resampled images
    count: int
    expected: float  # tokens that the mode alone can put beyond the cutoff, at most
    confidence: float  # fraction of resamples in which outliers are found again, 0..1

    def mask(self, norms: Tensor) -> Tensor:
        """Mark the tokens beyond the cutoff; norms (B, N) before the final norm -> (B, N) bool."""
        return _beyond(relative_norms(norms), self.cutoff, self.side)


def find_outliers(
    norms: Tensor,
    side: Side = "high",
    *,
    seed: int = 0,
    min_count: int = MIN_COUNT,
    max_p: float = MAX_P,
) -> Outliers | None:
    """Look for outliers among the norms of one block of several images; None if there are none.

    Args:
        norms: Token norms before the final norm, (I, N), positive.
        side: Whether to look for high or for low norms.
        seed: Seed of the bootstrap behind `interval` and `confidence`.
        min_count: Fewer tokens are never outliers.
        max_p: Nor is what a single mode would show with a larger probability.
    """
    counts = log_histogram(norms, side)
    found = _find_cut(counts.sum(0), min_count, max_p)
    if found is None:
        return None
    first, expected = found
    samples = _resample_histograms(counts, seed)
    beyond = samples[:, first:].sum(1) / samples.sum(1).clamp(min=1)
    again = sum(_find_cut(sample, min_count, max_p) is not None for sample in samples)
    count = int(counts[:, first:].sum())
    return Outliers(
        side=side,
        cutoff=_cutoff(first, side),
        fraction=count / float(counts.sum()),
        interval=quantile_interval(beyond),
        count=count,
        expected=expected,
        confidence=again / len(samples),
    )


def outlier_mask(norms: Tensor) -> Tensor:
    """Mark the outliers of each image by its own norms, on both sides, (B, N) -> (B, N) bool.

    Each row is judged alone, by the rule of `find_outliers` for a single image; most images have
    none. Where several images are at hand, `find_outliers` on all of them is more sensitive.
    """
    relative = relative_norms(norms)
    mask = torch.zeros_like(norms, dtype=torch.bool)
    for side in SIDES:
        for row, counts in enumerate(log_histogram(norms, side)):
            found = _find_cut(counts, MIN_COUNT, MAX_P)
            if found is not None:
                mask[row] |= _beyond(relative[row], _cutoff(found[0], side), side)
    return mask


def combine_masks(norms: Tensor, found: Iterable[Outliers | None]) -> Tensor:
    """Mark the tokens beyond any of several cutoffs, (B, N) -> (B, N) bool."""
    mask = torch.zeros_like(norms, dtype=torch.bool)
    for outliers in found:
        if outliers is not None:
            mask |= outliers.mask(norms)
    return mask


def relative_norms(norms: Tensor) -> Tensor:
    """Divide norms (..., N) by the median of their image."""
    return norms / norms.median(dim=-1, keepdim=True).values.clamp(min=1e-12)


def longest_run(blocks: Sequence[Outliers | None]) -> list[int]:
    """Name the longest run of consecutive blocks with outliers, given those of all blocks.

    A single block inside the network is not enough: contrast of the image shows in the first
    block, and a true artifact is carried on by the residual stream.
    """
    longest: list[int] = []
    for present, group in groupby(range(len(blocks)), key=lambda block: blocks[block] is not None):
        run = list(group)
        carried_on = len(run) > 1 or run[-1] == len(blocks) - 1
        if present and carried_on and len(run) > len(longest):
            longest = run
    return longest


def log_histogram(norms: Tensor, side: Side = "high") -> Tensor:
    """Count log(norm / median of its image) in fixed bins, (I, N) -> (I, BINS) on the CPU.

    For the low side the axis is mirrored, so that what is looked for lies on the right.
    """
    logs = norms.detach().cpu().double().clamp(min=1e-12).log()
    relative = logs - logs.median(dim=1, keepdim=True).values
    relative = relative if side == "high" else -relative
    bins = ((relative + LOG_RANGE) / BIN_WIDTH).floor().clamp(0, BINS - 1).long()
    return torch.zeros(len(norms), BINS).scatter_add_(1, bins, torch.ones_like(bins).float())


def _beyond(relative: Tensor, cutoff: float, side: Side) -> Tensor:
    return relative >= cutoff if side == "high" else relative <= cutoff


def _cutoff(first: int, side: Side) -> float:
    edge = float(torch.tensor(-LOG_RANGE + BIN_WIDTH * first).exp())
    return edge if side == "high" else 1 / edge


def _find_cut(counts: Tensor, min_count: int, max_p: float) -> tuple[int, float] | None:
    """Find the first bin from which on tokens are unexplained, and how many were expected.

    With S the fraction of tokens at or beyond a bin and h the hazard between the two quantiles of
    BULK, a log-concave mode obeys S(z) <= S(z1) exp(-h (z - z1)) for z beyond z1.
    """
    total = counts.sum()
    survival = counts.flip(0).cumsum(0).flip(0) / total.clamp(min=1)
    first = int((survival <= 1 - BULK[0]).int().argmax())
    second = max(int((survival <= 1 - BULK[1]).int().argmax()), first + 1)
    if second >= BINS or survival[second] <= 0:
        return None
    hazard = (survival[first] / survival[second]).log() / (second - first)  # per bin
    steps = torch.arange(BINS) - second
    bound = survival[second] * (-hazard * steps).exp()
    nearest = torch.tensor(MIN_RATIO).log() / BIN_WIDTH + BINS // 2
    fits = (
        (steps > 0)
        & (torch.arange(BINS) >= nearest)
        & (survival * total >= min_count)
        & (survival >= MIN_FRACTION)
        & (survival <= MAX_FRACTION)
        & (survival >= MIN_EXCESS * bound)
        & (torch.special.gammainc(survival * total, bound * total) <= max_p)  # P(Poisson >= count)
    )
    if not fits.any():
        return None
    chosen = _move_into_gap(counts, int(fits.int().argmax()))
    return chosen, float(bound[chosen] * total)


def _move_into_gap(counts: Tensor, first: int) -> int:
    """Move the cut to the middle of the widest empty stretch before the bulk of the outliers."""
    beyond = counts[first:].cumsum(0)
    filled = torch.cat([torch.tensor([0]), counts[first:].nonzero()[:, 0] + 1])
    filled = filled[filled <= int((beyond >= beyond[-1] / 2).int().argmax()) + 1]
    gaps = filled.diff() - 1
    if not len(gaps) or int(gaps.max()) * BIN_WIDTH < MIN_GAP:
        return first
    widest = int(gaps.argmax())
    return first + int(filled[widest]) + int(gaps[widest]) // 2


def _resample_histograms(counts: Tensor, seed: int) -> Tensor:
    """Give histograms (RESAMPLES, BINS) of resampled images, or of resampled tokens of few."""
    if len(counts) >= MIN_IMAGES:
        weights = np.concatenate(list(resample(len(counts), RESAMPLES, seed)))
        return torch.from_numpy(weights).float() @ counts
    generator = torch.Generator().manual_seed(seed)
    return torch.poisson(counts.sum(0).expand(RESAMPLES, -1), generator=generator)
