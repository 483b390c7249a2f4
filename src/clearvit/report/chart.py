"""Charts in one plain style, safe for color blindness; pyplot is never touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import Stroke
from numpy.typing import NDArray

from clearvit.report.figure import FAINT, INK

# Okabe and Ito's palette, distinguishable with any color vision.
BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)
COLORS = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)
MARKERS = "osD^vPX"
GRID = "#e4e7ec"


def new_chart(
    width: float,
    height: float,
    columns: int = 1,
    *,
    rows: int = 1,
    ratios: Sequence[float] | None = None,
    share_x: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure of `width` x `height` inches; its axes come row by row.

    Args:
        width: Inches.
        height: Inches.
        columns: Axes beside each other.
        rows: Axes above each other.
        ratios: Relative widths of the columns.
        share_x: Whether all axes have one x scale.
    """
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.set(w_pad=0.06, h_pad=0.06, wspace=0.04, hspace=0.04)  # type: ignore[call-arg]
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=ratios, sharex=share_x)
    return figure, list(axes.ravel())


def style_axes(axes: Axes, title: str, *, x: str = "", y: str = "", grid: bool = True) -> None:
    """Give axes a title on the left, axis labels, a light grid and no box."""
    axes.set_title(title, loc="left", size=11, weight="bold", color=INK, parse_math=False)
    axes.set_xlabel(x, size=9.5, color=FAINT)
    axes.set_ylabel(y, size=9.5, color=FAINT)
    axes.tick_params(labelsize=9, colors=FAINT, length=3, width=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
        spine.set_linewidth(0.6)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(color=GRID, linewidth=0.7)


def add_note(axes: Axes, text: str) -> None:
    """Write a note into the upper right corner of axes."""
    axes.text(
        0.985,
        0.97,
        text,
        transform=axes.transAxes,
        ha="right",
        va="top",
        size=9,
        color=FAINT,
        parse_math=False,
        linespacing=1.35,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85},
    )


def series_colors(count: int) -> list[Any]:
    """Give colors for `count` lines; many lines are a series, and go from dark to light."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    return list(colormaps["viridis"](np.linspace(0.0, 0.9, count)))


def outline_cells(axes: Axes, mask: NDArray[np.bool_], *, color: str = "#ff2d78") -> None:
    """Draw the borders of marked cells (H, W) over axes that show the grid on 0..1 x 0..1."""
    height, width = mask.shape
    padded = np.pad(mask, 1)
    rows, columns = np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1])  # an edge above (row, column)
    flat = [
        ((c / width, r / height), ((c + 1) / width, r / height)) for r, c in _pairs(rows, columns)
    ]
    rows, columns = np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1])  # an edge left of it
    upright = [
        ((c / width, r / height), (c / width, (r + 1) / height)) for r, c in _pairs(rows, columns)
    ]
    lines = LineCollection(flat + upright, colors=color, linewidths=1.0, capstyle="projecting")
    lines.set_path_effects([Stroke(linewidth=2.0, foreground="white"), Stroke(linewidth=1.0)])
    axes.add_collection(lines)


def _pairs(rows: NDArray[Any], columns: NDArray[Any]) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
