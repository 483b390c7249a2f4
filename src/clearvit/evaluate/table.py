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
class Measure:
    """One metric: its mean over draws, and how sure it is."""

    mean: float
    spread: float | None  # standard deviation over draws of labelled images; None for one draw
    low: float  # 95 % interval over resampled test images
    high: float


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
        rows = [dataclasses.asdict(row) for row in self.rows]
        for row in rows:
            for value in row["values"].values():
                for key, number in value.items():
                    value[key] = None if number is None or np.isnan(number) else number
        return {"task": self.task, "protocol": dict(self.protocol), "rows": rows}

    def text(self) -> str:
        """Write the table with aligned columns: mean ± spread over draws [95 % interval]."""
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


def as_row(model: str, result: Result, *, resamples: int, seed: int) -> Row:
    """Summarise the rows of all draws; draws share the resampled test images."""
    tested = len(result.rows[0])
    chance = np.random.default_rng(seed)
    weights = chance.multinomial(tested, np.full(tested, 1 / tested), size=resamples)
    found = [result.summary(rows.sum(0)) for rows in result.rows]
    again = [result.summary(weights @ rows) for rows in result.rows]
    values = {}
    for name in found[0]:
        draws = np.array([float(one[name]) for one in found])
        resampled = np.mean([one[name] for one in again], axis=0)
        low, high = (
            np.nanquantile(resampled, (0.025, 0.975))
            if not np.isnan(resampled).all()
            else (np.nan, np.nan)
        )
        spread = float(draws.std(ddof=1)) if len(draws) > 1 else None
        values[name] = Measure(float(draws.mean()), spread, float(low), float(high))
    return Row(model, result.setting, result.labelled, tested, len(result.rows), values)


def _cell(measure: Measure | None) -> str:
    if measure is None or np.isnan(measure.mean):
        return "\N{EN DASH}"
    digits = 3 if abs(measure.high) < 10 else 1
    spread = "" if measure.spread is None else f" ± {measure.spread:.{digits}f}"
    return (
        f"{measure.mean:.{digits}f}{spread} [{measure.low:.{digits}f}, {measure.high:.{digits}f}]"
    )
