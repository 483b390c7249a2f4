"""The result of a benchmark: one row per model and batch size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearvit.benchmarking.machine import Machine
from clearvit.benchmarking.quality import NEAR, Quality
from clearvit.report.text_table import render_table
from clearvit.timing import Spread

UNKNOWN = "\N{EN DASH}"
HEADER = (
    *("model", "px", "batch", "images/s", "range", "ratio", "range"),
    *("GMACs", "of sgemm", "peak MB"),
)
QUALITY = ("class cosine", "map cosine", "top-1, %", "1-NN, %")


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
    quality: Quality | None = None  # beside the first model; None without images

    @property
    def is_unclear(self) -> bool:
        """Whether the ratio varies more between rounds than it differs from 1."""
        return self.ratio.high - self.ratio.low > abs(self.ratio.median - 1)


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
        """Write the table with aligned columns, what the columns mean, and warnings."""
        parts = [render_table(self.header(), self.cells()), self.legend(), *self.warnings()]
        return "\n\n".join(parts)

    def header(self) -> tuple[str, ...]:
        """Name the columns; those of quality are there if it was measured."""
        return (*HEADER, *(name for _, name in self._measured()))

    def cells(self) -> list[tuple[str, ...]]:
        """Give the cells of the table as text, without the header."""
        shown = [field for field, _ in self._measured()]
        return [(*_cells(row), *_quality_cells(row.quality, shown)) for row in self.rows]

    def _measured(self) -> list[tuple[str, str]]:
        """Fields of quality that some model has, with their names as columns."""
        fields = ("cls", "map", "top1", "nearest")
        known = [row.quality for row in self.rows if row.quality is not None]
        pairs = zip(fields, QUALITY, strict=True)
        return [pair for pair in pairs if any(getattr(q, pair[0]) is not None for q in known)]

    def warnings(self) -> list[str]:
        """Say which ratios are no evidence, and which models are far from the first."""
        found = []
        others = [row for row in self.rows if row.model != self.rows[0].model]
        unclear = [f"{row.model} at batch {row.batch}" for row in others if row.is_unclear]
        if unclear:
            found.append(
                f"Warning: between rounds the ratio varies more than it differs from 1 for"
                f" {', '.join(unclear)}. Time again on a quieter machine, or with more rounds."
            )
        far = {
            row.model: row.quality.cls
            for row in others
            if row.quality is not None and (row.quality.cls or 1) < NEAR
        }
        for model, cosine in far.items():
            found.append(
                f"Warning: the class token of {model} has a cosine of {cosine:.3f} to that of"
                f" {self.rows[0].model}, below {NEAR}. Keep more patches, or train what is pruned."
            )
        return found

    def legend(self) -> str:
        """Explain how it was measured."""
        rounds = sorted({row.rounds for row in self.rows})
        count = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return (
            f"{self.machine}. Medians of {count} interleaved rounds with their range; ratio: times"
            f" as fast as the first model. sgemm: {self.gemm / 1e9:.0f} GMAC/s, measured in the"
            " same rounds. Peak: resident memory of the forward passes in a process of its own;"
            f" {UNKNOWN} where it could not be measured.{self._quality_legend()}"
        )

    def _quality_legend(self) -> str:
        counts = {row.quality.images for row in self.rows if row.quality is not None}
        if not counts:
            return ""
        return (
            f" Quality on {max(counts)} images: mean cosines to the first model; top-1 of the"
            " classifier and leave-one-out 1-NN of class tokens, by the folders of the images."
        )


def _quality_cells(quality: Quality | None, fields: Sequence[str]) -> tuple[str, ...]:
    """Cosines with three digits, percentages with one."""
    cells = []
    for name in fields:
        value = None if quality is None else getattr(quality, name)
        digits = 3 if name in ("cls", "map") else 1
        cells.append(UNKNOWN if value is None else f"{value:.{digits}f}")
    return tuple(cells)


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
