"""Rows of panels as one figure: images, heat maps, heat maps on images.

Tokens are drawn as what they are, cells with sharp edges. Nothing here touches pyplot, so a
program may draw from threads and keep its own matplotlib settings.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from clearvit.files import MADE_BY, replace_file

Array = NDArray[Any]
Limits = tuple[float, float]

DPI = 125
WIDTH = 12.8  # inches, so 1600 pixels
MARGIN, GAP, BAR = 0.3, 0.26, 0.32  # inches; BAR holds a color bar with its numbers
HEAD, TITLE, FOOT = 0.6, 0.5, 0.42  # inches for the figure title, panel titles and the caption
LINE, CAPTION_CHARACTERS = 0.16, 160  # inches of a line of the caption, and what fits on it
TALLEST = 5.6  # inches, of a panel
INK, FAINT = "#1d2330", "#69707f"
NORM_LIMITS = (0.5, 3.0)  # of norms, in units of the median: healthy ones look alike and dark
NORM_CMAP, ATTENTION_CMAP = "magma", "viridis"  # perceptually uniform, safe for color blindness


@dataclass(frozen=True)
class Panel:
    """One cell of a figure: an image, a heat map, a heat map on an image, or just its text."""

    title: str
    image: Array | None = None  # (height, width, 3), uint8 or 0..1
    values: Array | None = None  # (H, W), one per token
    note: str = ""  # second, fainter line of the title
    limits: Limits | None = None  # values at the ends of the color map; else all of `values`
    cmap: str = NORM_CMAP  # name of a matplotlib color map
    label: str = ""  # unit at the color bar
    aspect: float | None = None  # height / width as drawn; else that of the image or values

    @property
    def kind(self) -> Literal["image", "heat", "overlay", "text"]:
        """What there is to draw."""
        if self.image is None:
            return "text" if self.values is None else "heat"
        return "image" if self.values is None else "overlay"

    @property
    def shape(self) -> float:
        """Height / width as drawn."""
        if self.aspect is not None:
            return self.aspect
        source = self.image if self.image is not None else self.values
        return 1.0 if source is None else source.shape[0] / source.shape[1]


def shared_limits(arrays: Sequence[Array], *, low: float | None = None, top: float = 1.0) -> Limits:
    """Find one scale for several arrays: from `low`, else the minimum, to the quantile `top`."""
    values = np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in arrays])
    values = values[np.isfinite(values)]
    if not values.size:
        return (0.0, 1.0)
    start = float(values.min()) if low is None else low
    end = float(np.quantile(values, top))
    return (start, end) if end > start else (start, start + 1.0)


def draw_heatmap(
    axes: Axes, values: Array, *, limits: Limits | None = None, cmap: str = NORM_CMAP
) -> AxesImage:
    """Draw values (H, W) as cells with sharp edges that fill the axes."""
    low, high = limits or shared_limits([values])
    return axes.imshow(
        values,
        cmap=cmap,
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect="auto",
        extent=(0, 1, 1, 0),
    )


def draw_overlay(
    axes: Axes,
    image: Array,
    values: Array,
    *,
    limits: Limits | None = None,
    cmap: str = ATTENTION_CMAP,
) -> AxesImage:
    """Draw values (H, W) on a gray image (height, width, 3); the lower, the more transparent."""
    low, high = limits or shared_limits([values])
    gray = _unit(image) @ np.array([0.299, 0.587, 0.114])
    axes.imshow(gray, cmap="gray", vmin=-0.15, vmax=1.15, aspect="auto", extent=(0, 1, 1, 0))
    drawn = draw_heatmap(axes, values, limits=(low, high), cmap=cmap)
    strength = np.nan_to_num(np.clip((values - low) / (high - low), 0, 1))
    drawn.set_alpha(0.1 + 0.85 * np.sqrt(strength))
    return drawn


def draw_panels(rows: Sequence[Sequence[Panel]], title: str = "", caption: str = "") -> Figure:
    """Lay out rows of panels, each row as wide as the figure as far as that is sensible.

    Args:
        rows: Panels from left to right; empty rows are left out.
        title: One line above everything.
        caption: Small print below everything.
    """
    filled = [row for row in rows if row]
    sizes = [_row_size(row) for row in filled]
    small = textwrap.wrap(caption, CAPTION_CHARACTERS)  # a model may be named by a long path
    head, foot = (HEAD if title else 0.1), (FOOT + (len(small) - 1) * LINE if small else 0.15)
    total = head + foot + sum(h + TITLE + GAP for _, h in sizes)
    figure = Figure(figsize=(WIDTH, total), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        title = _shorten(title, 110)
        write_text(figure, MARGIN, total - 0.22, title, size=15, weight="bold", color=INK)
    top = total - head
    for row, (width, height) in zip(filled, sizes, strict=True):
        _draw_row(figure, row, top - TITLE, width, total)
        top -= height + TITLE + GAP
    if small:
        write_text(figure, MARGIN, foot - 0.02, "\n".join(small), size=9.5, color=FAINT)
    return figure


def save_figure(figure: Figure, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a figure as PNG, whole or not at all; missing directories are made.

    A file that clearvit did not write is replaced only with `overwrite`.
    """
    target = Path(path)
    with replace_file(target, overwrite=overwrite) as temporary, warnings.catch_warnings():
        # File names in titles may use letters the font lacks; a box in their place will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format="png", metadata={"Software": MADE_BY})
    return target


def _row_size(row: Sequence[Panel]) -> tuple[float, float]:
    """Width of each panel, and height of the row with its color bars, in inches."""
    room = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
    tallest = max(panel.shape for panel in row)
    width = min(room, TALLEST / tallest)
    bars = [BAR + (0.14 if p.label else 0.0) for p in row if p.values is not None]
    return width, width * tallest + max(bars, default=0.0)


def _draw_row(figure: Figure, row: Sequence[Panel], top: float, width: float, total: float) -> None:
    """Draw panels of one width below `top`, in inches from the bottom left."""
    for column, panel in enumerate(row):
        left, height = MARGIN + column * (width + GAP), width * panel.shape
        title = {"size": 11.5, "weight": "bold", "color": INK}
        write_text(figure, left, top + 0.42, panel.title, **title)
        if panel.kind != "text":
            write_text(figure, left, top + 0.2, panel.note, size=9.5, color=FAINT)
        box = (left / WIDTH, (top - height) / total, width / WIDTH, height / total)
        image = _draw_panel(figure.add_axes(box), panel)
        if image is not None:
            below = (box[0], box[1] - 0.15 / total, box[2], 0.08 / total)
            _color_bar(figure, figure.add_axes(below), panel, image)


def _draw_panel(axes: Axes, panel: Panel) -> AxesImage | None:
    axes.set_axis_off()
    if panel.image is not None and panel.values is not None:
        return draw_overlay(axes, panel.image, panel.values, limits=panel.limits, cmap=panel.cmap)
    if panel.values is not None:
        return draw_heatmap(axes, panel.values, limits=panel.limits, cmap=panel.cmap)
    if panel.image is not None:
        # Images are smoothed when resized; an image of a few cells is a map and keeps its edges.
        cells = max(panel.image.shape[:2]) <= 128
        axes.imshow(
            _unit(panel.image),
            interpolation="nearest" if cells else "antialiased",
            aspect="auto",
            extent=(0, 1, 1, 0),
        )
        return None
    axes.text(0, 1, panel.note, color=FAINT, size=10.5, va="top", wrap=True, parse_math=False)
    return None


def _color_bar(figure: Figure, axes: Axes, panel: Panel, image: AxesImage) -> None:
    """Draw the scale; an arrow at its end says that some values lie above it."""
    low, high = image.get_clim()
    above = panel.values is not None and bool((panel.values > high * (1 + 1e-6)).any())
    solid = ScalarMappable(Normalize(low, high), cmap=panel.cmap)  # without the transparency
    bar = figure.colorbar(
        solid,
        cax=axes,
        orientation="horizontal",
        extend="max" if above else "neither",
        extendfrac=0.03,
    )
    steps = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    bar.set_ticks([step for step in steps if low <= step <= high])
    for label, step in zip(axes.get_xticklabels(), bar.get_ticks(), strict=True):
        offset = (step - low) / (high - low)  # labels at the ends stay within the panel
        label.set_horizontalalignment(
            "left" if offset < 0.05 else "right" if offset > 0.95 else "center"
        )
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=8.5, length=2, width=0.6, color=FAINT, labelcolor=FAINT, pad=1.5)
    if panel.label:
        axes.set_xlabel(panel.label, size=8.5, color=FAINT, labelpad=1)


def write_text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """Write text with its upper left corner at (x, y), in inches from the bottom left.

    Args:
        figure: Where to.
        x: Distance from the left edge.
        y: Distance from the lower edge.
        text: The text; a file may be called a$b$c.jpg.
        **style: As matplotlib takes it: size, weight, color.
    """
    width, height = figure.get_size_inches()
    figure.text(x / width, y / height, text, va="top", parse_math=False, **style)


def _unit(image: Array) -> Array:
    """Bring an image to 0..1."""
    if image.dtype == np.uint8:
        return image.astype(np.float64) / 255
    return np.clip(image, 0.0, 1.0)


def _shorten(text: str, length: int) -> str:
    """Cut a long line in the middle, where file names differ least."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2 - 1]}…{text[-(length // 2) :]}"
