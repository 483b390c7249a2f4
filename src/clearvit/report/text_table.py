"""Tables for a terminal, a log or a text file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clearvit.report.elements import Cell

NUMERIC = re.compile(r"[-+\N{MINUS SIGN}<>≈]?\s?\d")
UNKNOWN = "\N{EN DASH}"


def render_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Write a table as plain text with aligned columns; no line is ever cut or wrapped.

    Args:
        columns: Names of the columns.
        rows: One sequence of cells per row. Unknown numbers (None, NaN) are a dash; columns of
            numbers are aligned on the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    for index, name in enumerate(columns):
        numeric = is_numeric([row[index] for row in rows])
        table.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(show_cell(cell)) for cell in row))
    cells = [tuple(columns), *rows]
    width = sum(max(len(show_cell(row[i])) for row in cells) * 2 + 2 for i in range(len(columns)))
    text = io.StringIO()
    console = Console(file=text, width=max(width, 1), color_system=None, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def show_cell(cell: Cell) -> str:
    """Write one cell; floats get four digits, unknown numbers a dash."""
    if isinstance(cell, float):
        cell = f"{cell:.4g}" if math.isfinite(cell) else None
    return UNKNOWN if cell is None else str(cell)


def is_numeric(cells: Sequence[Cell]) -> bool:
    """Tell whether a column holds numbers, also written with a sign, a unit or an interval."""
    texts = [show_cell(cell) for cell in cells]
    return bool(texts) and all(NUMERIC.match(text) or text in ("", UNKNOWN) for text in texts)
