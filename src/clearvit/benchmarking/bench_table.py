"""The result of a benchmark: one row per model and batch size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from clearvit.benchmarking.machine import Machine
from clearvit.report.text_table import render_table
from clearvit.timing import Spread

UNKNOWN = "\N{EN DASH}"
HEADER = (
    *("model", "px", "batch", "images/s", "range", "ratio", "range"),
    *("GMACs", "of sgemm", "peak MB"),
)


@dataclass(frozen=True)
class BenchRow:
    """One model at one batch size."""

    model: str
    batch: int
    size: tuple[int, int]  # (height, width) in pixels
    speed: Spread  # images per second
    ratio: Spread  # times as fast as the first model, round by round
    rounds: int
    macs: float | None  # of one image, scoring included; None where it cannot be counted
    gemm_fraction: float | None  # of the rate of a large matrix product in the same rounds
    memory: float | None  # peak in MB; None where it cannot be measured


@dataclass(frozen=True, repr=False)
class Bench:
    """All models, in the order given, batch size by batch size."""

    machine: Machine
    gemm: float  # multiply-accumulates per second of a large matrix product, median
    rows: tuple[BenchRow, ...]
    drawn: tuple[str, ...] = ()  # PNG files of the patches that pruned models keep

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON can hold it."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from clearvit.report.notebook import card

        return card("Speed", text=self.legend(), table=(HEADER, self.cells()))

    def text(self) -> str:
        """Write the table with aligned columns, and below it what the columns mean."""
        return f"{render_table(HEADER, self.cells())}\n\n{self.legend()}"

    def cells(self) -> list[tuple[str, ...]]:
        """Give the cells of the table as text, without the header."""
        return [_cells(row) for row in self.rows]

    def legend(self) -> str:
        """Explain how it was measured."""
        rounds = sorted({row.rounds for row in self.rows})
        count = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return (
            f"{self.machine}. Medians of {count} interleaved rounds with their range; ratio: times"
            f" as fast as the first model. sgemm: {self.gemm / 1e9:.0f} GMAC/s, measured in the"
            " same rounds. Peak: resident memory of the forward passes in a process of its own;"
            f" {UNKNOWN} where it could not be measured."
        )


def _cells(row: BenchRow) -> tuple[str, ...]:
    return (
        row.model,
        f"{row.size[0]}x{row.size[1]}",
        str(row.batch),
        f"{row.speed.median:.2f}",
        f"{row.speed.low:.2f}-{row.speed.high:.2f}",
        f"{row.ratio.median:.2f}",
        f"{row.ratio.low:.2f}-{row.ratio.high:.2f}",
        UNKNOWN if row.macs is None else f"{row.macs / 1e9:.2f}",
        UNKNOWN if row.gemm_fraction is None else f"{100 * row.gemm_fraction:.0f} %",
        UNKNOWN if row.memory is None else f"{row.memory:.0f}",
    )
