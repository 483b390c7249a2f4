"""The result of an evaluation: one row per model and setting, with spread and counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Summary = Callable[[Floats], Mapping[str, Floats]]
"""Turns sums of per-image rows (…, S) into named metrics (…)."""


@dataclass(frozen=True)
class Difference:
    """How far a metric is from that of the first model, on the same images and draws."""

    mean: float
    low: float  # 95 % interval over resampled test images
    high: float


@dataclass(frozen=True)
class Measure:
    """One metric: its mean over draws, and how sure it is."""

    mean: float
    spread: float | None  # standard deviation over draws of labelled images; None for one draw
    low: float  # 95 % interval over resampled test images
    high: float
    difference: Difference | None = None  # None for the first model


@dataclass(frozen=True)
class Result:
    """What a task found for one model and setting."""

    setting: str
    labelled: int  # images
    rows: Sequence[Floats]  # one (V, S) per draw
    summary: Summary


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    setting: str
    labelled: int  # images learned from
    tested: int  # images measured on
    draws: int
    values: Mapping[str, Measure]

    def __getitem__(self, metric: str) -> Measure:
        return self.values[metric]


@dataclass(frozen=True)
class Table:
    """All models under one protocol."""

    task: str
    protocol: Mapping[str, Any]  # everything the numbers depend on besides the models
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON can hold it."""
        rows = [_numbers(dataclasses.asdict(row)) for row in self.rows]
        return {"task": self.task, "protocol": dict(self.protocol), "rows": rows}

    def text(self) -> str:
        """Write the table with aligned columns: mean ± spread over draws [95 % interval].

        Behind it, for models after the first, the difference to the first: +mean [95 % interval].
        """
        metrics = list(dict.fromkeys(name for row in self.rows for name in row.values))
        lines = [("model", "setting", "labelled", "tested", *metrics)]
        for row in self.rows:
            cells = [_cell(row.values.get(name)) for name in metrics]
            lines.append((row.model, row.setting, str(row.labelled), str(row.tested), *cells))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


@dataclass(frozen=True)
class Found:
    """A metric of one model and setting: of each draw, and of resampled test images."""

    draws: Floats  # (D,)
    resampled: Floats  # (R,), means over draws

    def __sub__(self, other: Found) -> Found:
        return Found(self.draws - other.draws, self.resampled - other.resampled)

    def interval(self) -> tuple[float, float]:
        """95 % of the resampled values lie between these."""
        if np.isnan(self.resampled).all():
            return np.nan, np.nan
        low, high = np.nanquantile(self.resampled, (0.025, 0.975))
        return float(low), float(high)


def found_by(result: Result, *, resamples: int, seed: int) -> dict[str, Found]:
    """Find every metric; all models and draws share the resampled test images."""
    tested = len(result.rows[0])
    chance = np.random.default_rng(seed)
    weights = chance.multinomial(tested, np.full(tested, 1 / tested), size=resamples)
    once = [result.summary(rows.sum(0)) for rows in result.rows]
    again = [result.summary(weights @ rows) for rows in result.rows]
    return {
        name: Found(
            np.array([float(one[name]) for one in once]),
            np.mean([one[name] for one in again], axis=0),
        )
        for name in once[0]
    }


def as_row(
    model: str, result: Result, found: Mapping[str, Found], first: Mapping[str, Found] | None = None
) -> Row:
    """Summarise all draws of one model and setting.

    Args:
        model: Its name.
        result: What the task found.
        found: Its metrics, by `found_by`.
        first: Those of the first model in the same setting; None for the first itself.
    """
    values = {name: _measure(one, (first or {}).get(name)) for name, one in found.items()}
    tested = len(result.rows[0])
    return Row(model, result.setting, result.labelled, tested, len(result.rows), values)


def _measure(found: Found, first: Found | None) -> Measure:
    spread = float(found.draws.std(ddof=1)) if len(found.draws) > 1 else None
    difference = None
    if first is not None and first.draws.shape == found.draws.shape:
        apart = found - first
        difference = Difference(float(apart.draws.mean()), *apart.interval())
    return Measure(float(found.draws.mean()), spread, *found.interval(), difference)


def _numbers(content: Any) -> Any:
    """Replace what is not a number, which JSON cannot hold, by None."""
    if isinstance(content, dict):
        return {key: _numbers(value) for key, value in content.items()}
    return None if isinstance(content, float) and np.isnan(content) else content


def _cell(measure: Measure | None) -> str:
    if measure is None or np.isnan(measure.mean):
        return "\N{EN DASH}"
    digits = 3 if abs(measure.high) < 10 else 1
    spread = "" if measure.spread is None else f" ± {measure.spread:.{digits}f}"
    apart = measure.difference
    behind = ""
    if apart is not None:
        behind = f" {apart.mean:+.{digits}f} [{apart.low:+.{digits}f}, {apart.high:+.{digits}f}]"
    interval = f"[{measure.low:.{digits}f}, {measure.high:.{digits}f}]"
    return f"{measure.mean:.{digits}f}{spread} {interval}{behind}"
