"""The one bootstrap: intervals over resampled images, queries or classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
AT_ONCE = 4_000_000  # counts held in memory while resampling


@dataclass(frozen=True)
class Interval:
    """A mean and the range that holds most of its resampled values (95 % unless said)."""

    mean: float
    low: float
    high: float


def resample(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Sample `count` of `count` items with replacement, as chunks of counts (R, count).

    The same arguments give the same samples, so differences over them are paired.
    """
    rng = np.random.default_rng(seed)
    chunk = max(1, AT_ONCE // max(count, 1))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        yield rng.multinomial(count, np.full(count, 1 / count), size=size)


def quantile_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Give the central range that holds a fraction `level` of the finite values, (low, high)."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return np.nan, np.nan
    tail = (1 - level) / 2
    low, high = np.quantile(finite, (tail, 1 - tail))
    return float(low), float(high)


def bootstrap(
    values: Any,
    *,
    weights: Any | None = None,
    groups: Any | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval of a (weighted) mean over items, by resampling items or whole groups.

    Args:
        values: One number per item, (N,), array or tensor; NaN is left out. Pass the difference of
            two methods for a paired interval.
        weights: Non-negative weight of each item, (N,); all equal if None.
        groups: Group of each item, (N,): whole groups are resampled, for items that are not
            independent (patches of an image, queries of a class).
        resamples: How often to resample.
        level: Fraction of them inside the interval.
        seed: Seed of the resampling.
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    weight = np.ones_like(numbers) if weights is None else np.asarray(weights, dtype=np.float64)
    known = ~np.isnan(numbers) & (weight > 0)
    numbers, weight = numbers[known], weight[known]
    if not len(numbers):
        return Interval(np.nan, np.nan, np.nan)
    group = np.arange(len(numbers))
    if groups is not None:
        group = np.unique(np.asarray(groups)[known], return_inverse=True)[1]
    sums = np.bincount(group, weights=numbers * weight)
    totals = np.bincount(group, weights=weight)
    means = [(counts @ sums) / (counts @ totals) for counts in resample(len(sums), resamples, seed)]
    low, high = quantile_interval(np.concatenate(means), level)
    return Interval(float(sums.sum() / totals.sum()), low, high)
