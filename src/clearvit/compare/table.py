"""The table as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearvit.compare.reference import FEW

if TYPE_CHECKING:
    from clearvit.compare.compare import Comparison

TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
Cells = tuple[str | None, ...]


def table(comparison: Comparison) -> tuple[tuple[str, ...], tuple[Cells, ...]]:
    """Give header and cells as text; columns in which nothing is known are left out."""
    columns = _columns(comparison)
    known = [column for column in columns if any(cell is not None for cell in column[1])]
    header = tuple(title for title, _ in known)
    return header, tuple(zip(*(cells for _, cells in known), strict=True))


def _columns(comparison: Comparison) -> list[tuple[str, list[str | None]]]:
    rows, rule = comparison.rows, comparison.rule
    kind = "high-norm" if rule is None else f"{rule.side}-norm"
    peak = "" if rule is None else f", block {rule.peak + 1}"
    worst = "" if rule is None else f"worst of blocks {span(rule.blocks)}"
    return [
        ("model", [row.model for row in rows]),
        ("artifacts", [row.verdict for row in rows]),
        (f"{kind} tokens{peak}", [percent(row.peak_share, 2) for row in rows]),
        (worst, [percent(row.worst_share, 2) for row in rows]),
        ("shifted", [percent(row.equivariance) for row in rows]),
        (f"distance to {comparison.yardstick.views} views", [_four(r.distance) for r in rows]),
        (f"gap to {FEW} views closed", [percent(row.gap_closed) for row in rows]),
        ("class token kept", [_four(row.agreement) for row in rows]),
        (f"{comparison.neighbours}-NN", [percent(row.accuracy, 1) for row in rows]),
        ("ms per image", [_milliseconds(row.milliseconds) for row in rows]),
        ("cost", [f"{row.cost:.2f} {TIMES}" for row in rows]),
        ("parameters", [_millions(row.parameters) for row in rows]),
    ]


def span(blocks: tuple[int, ...]) -> str:
    """Name blocks that follow each other, counted from 1."""
    first, last = blocks[0] + 1, blocks[-1] + 1
    return str(first) if first == last else f"{first}{DASH}{last}"


def percent(share: float | None, digits: int = 0) -> str | None:
    """Write a share as a percentage."""
    if share is None:
        return None
    number = f"{100 * share:.{digits}f}"
    negative = number.startswith("-") and float(number) != 0
    return f"{MINUS if negative else ''}{number.lstrip('-')} %"


def _four(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e5 else str(count)
