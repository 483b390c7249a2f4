"""Numbers as cells of the result pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from clearvit.stats import Interval, bootstrap, quantile_interval, resample


def percent(value: float | None, digits: int = 0) -> str:
    """Write a fraction as a percentage; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def percent_interval(values: Any, *, signed: bool = False) -> str:
    """Write the mean of fractions, one per item, as a percentage with its 95 % CI over items."""
    found = bootstrap(values)
    sign = "+" if signed else ""
    mean, low, high = (f"{100 * one:{sign}.0f}" for one in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})"


def ratio_interval(parts: Any, wholes: Any) -> Interval:
    """Ratio of two means over the same items, (N,) each, with its 95 % CI over items."""
    over, under = (np.asarray(one, dtype=np.float64) for one in (parts, wholes))
    ratios = [(counts @ over) / (counts @ under) for counts in resample(len(over), 2000, 0)]
    low, high = quantile_interval(np.concatenate(ratios))
    return Interval(float(over.sum() / under.sum()), low, high)
