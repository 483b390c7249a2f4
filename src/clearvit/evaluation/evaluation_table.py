"""The result of an evaluation: one row per model and setting, with spread and intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.evaluation.registry import CELLS
from clearvit.report.elements import Cell
from clearvit.report.text_table import UNKNOWN, render_table
from clearvit.stats import Interval, quantile_interval, resample

Floats = NDArray[np.float64]
Summary = Callable[[Floats], Mapping[str, Floats]]
"""Turns sums of per-image rows (…, S) into named metrics (…)."""
RESAMPLES = 500  # of the test images, for intervals


@dataclass(frozen=True)
class Measure:
    """One metric: its mean over seeds, and its uncertainty."""

    mean: float
    std: float | None  # standard deviation over seeds; None for one seed
    low: float  # 95 % interval over resampled test images
    high: float
    difference: Interval | None = None  # to the first model on the same images and seeds


@dataclass(frozen=True)
class Result:
    """What a task found for one model and setting."""

    setting: str
    num_labelled: int  # images learned from
    rows: Sequence[Floats]  # one (V, S) per seed
    summary: Summary


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    setting: str
    num_labelled: int  # images learned from
    num_tested: int  # images measured on
    seeds: int
    values: Mapping[str, Measure]

    def __getitem__(self, metric: str) -> Measure:
        return self.values[metric]


@dataclass(frozen=True, repr=False)
class Table:
    """All models under one protocol."""

    task: str
    protocol: Mapping[str, Any]  # everything the numbers depend on besides the models
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON can hold it."""
        rows = [_without_nan(dataclasses.asdict(row)) for row in self.rows]
        return {"task": self.task, "protocol": dict(self.protocol), "rows": rows}

    def __repr__(self) -> str:
        return f"{self.task}\n{self.text()}"

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from clearvit.report.notebook import card

        return card(self.task, text=CELLS, table=self._cells())

    def text(self) -> str:
        """Write the table with aligned columns: mean ± standard deviation over seeds [95 % CI].

        Models after the first also have their difference to the first: +mean [95 % CI].
        """
        return render_table(*self._cells())

    def _cells(self) -> tuple[tuple[str, ...], list[list[Cell]]]:
        metrics = list(dict.fromkeys(name for row in self.rows for name in row.values))
        rows: list[list[Cell]] = []
        for row in self.rows:
            cells = [_cell(row.values.get(name)) for name in metrics]
            rows.append([row.model, row.setting, row.num_labelled, row.num_tested, *cells])
        return ("model", "setting", "labelled", "tested", *metrics), rows


@dataclass(frozen=True)
class Metric:
    """A metric of one model and setting: for each seed, and for resampled test images."""

    values: Floats  # one per seed
    resampled: Floats  # (RESAMPLES,), means over seeds

    def __sub__(self, other: Metric) -> Metric:
        return Metric(self.values - other.values, self.resampled - other.resampled)

    def interval(self) -> Interval:
        """Give the mean and the 95 % interval over resampled test images."""
        return Interval(float(self.values.mean()), *quantile_interval(self.resampled))


def resample_metrics(result: Result, *, seed: int) -> dict[str, Metric]:
    """Compute every metric; all models and seeds share the resampled test images."""
    counts = np.concatenate(list(resample(len(result.rows[0]), RESAMPLES, seed)))
    values = [result.summary(rows.sum(0)) for rows in result.rows]
    resampled = [result.summary(counts @ rows) for rows in result.rows]
    return {
        name: Metric(
            np.array([float(one[name]) for one in values]),
            np.mean([one[name] for one in resampled], axis=0),
        )
        for name in values[0]
    }


def make_row(
    model: str,
    result: Result,
    metrics: Mapping[str, Metric],
    baseline: Mapping[str, Metric] | None = None,
) -> Row:
    """Summarize all seeds of one model and setting.

    Args:
        model: Its name.
        result: What the task found.
        metrics: Its metrics, by `resample_metrics`.
        baseline: Those of the first model in the same setting; None for the first itself.
    """
    values = {name: _measure(one, (baseline or {}).get(name)) for name, one in metrics.items()}
    tested = len(result.rows[0])
    return Row(model, result.setting, result.num_labelled, tested, len(result.rows), values)


def _measure(metric: Metric, baseline: Metric | None) -> Measure:
    std = float(metric.values.std(ddof=1)) if len(metric.values) > 1 else None
    difference = None
    if baseline is not None and baseline.values.shape == metric.values.shape:
        difference = (metric - baseline).interval()
    own = metric.interval()
    return Measure(own.mean, std, own.low, own.high, difference)


def _without_nan(content: Any) -> Any:
    """Replace NaN, which JSON cannot hold, by None."""
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    return None if isinstance(content, float) and np.isnan(content) else content


def _cell(measure: Measure | None) -> str:
    if measure is None or np.isnan(measure.mean):
        return UNKNOWN
    digits = 3 if abs(measure.high) < 10 else 1
    std = "" if measure.std is None else f" ± {measure.std:.{digits}f}"
    apart = measure.difference
    difference = ""
    if apart is not None:
        interval = f"[{apart.low:+.{digits}f}, {apart.high:+.{digits}f}]"
        difference = f" {apart.mean:+.{digits}f} {interval}"
    interval = f"[{measure.low:.{digits}f}, {measure.high:.{digits}f}]"
    return f"{measure.mean:.{digits}f}{std} {interval}{difference}"
