"""The cells of the table, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearvit.artifacts.verdict import SHORT
from clearvit.comparison.reference import FEW

if TYPE_CHECKING:
    from clearvit.comparison.compare import Comparison

TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
Cells = tuple[str | None, ...]


def table_cells(comparison: Comparison) -> tuple[tuple[str, ...], tuple[Cells, ...]]:
    """Give header and cells as text; columns in which nothing is known are left out."""
    columns = _columns(comparison)
    known = [column for column in columns if any(cell is not None for cell in column[1])]
    header = tuple(title for title, _ in known)
    return header, tuple(zip(*(cells for _, cells in known), strict=True))


def _columns(comparison: Comparison) -> list[tuple[str, list[str | None]]]:
    rows, rule = comparison.rows, comparison.rule
    kind = "high-norm" if rule is None else f"{rule.side}-norm"
    peak = "" if rule is None else f", block {rule.peak}"
    worst = "" if rule is None else f"worst of blocks {block_range(rule.blocks)}"
    return [
        ("model", [row.model for row in rows]),
        ("artifacts", [row.verdict and SHORT[row.verdict] for row in rows]),
        (f"{kind} tokens{peak}", [percent(row.peak_fraction, 2) for row in rows]),
        (worst, [percent(row.worst_fraction, 2) for row in rows]),
        ("change with shift", [percent(row.equivariance) for row in rows]),
        (f"distance to {comparison.gap.views} views", [_four_digits(r.distance) for r in rows]),
        (f"gap to {FEW} views closed", [percent(row.gap_closed) for row in rows]),
        ("class token cosine", [_four_digits(row.class_similarity) for row in rows]),
        (f"{comparison.neighbors}-NN", [percent(row.knn_accuracy, 1) for row in rows]),
        ("ms per image", [_milliseconds(row.milliseconds) for row in rows]),
        ("cost", [f"{row.cost_ratio:.2f} {TIMES}" for row in rows]),
        ("parameters", [_millions(row.parameters) for row in rows]),
    ]


def block_range(blocks: tuple[int, ...]) -> str:
    """Name consecutive blocks, counted from 0."""
    first, last = blocks[0], blocks[-1]
    return str(first) if first == last else f"{first}{DASH}{last}"


def percent(fraction: float | None, digits: int = 0) -> str | None:
    """Write a fraction as a percentage."""
    if fraction is None:
        return None
    number = f"{100 * fraction:.{digits}f}"
    negative = number.startswith("-") and float(number) != 0
    return f"{MINUS if negative else ''}{number.lstrip('-')} %"


def _four_digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e5 else str(count)
