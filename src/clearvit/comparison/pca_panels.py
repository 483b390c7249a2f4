"""Before and after: patch tokens of each model as colors, in the first model's colors."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.report.figure import DPI, FAINT, INK
from clearvit.report.pca import PCA

SIDE = 640  # pixels of the longer side of an image as it is kept
WIDTH, GAP, MARGIN, HEAD, NAME = 12.8, 0.1, 0.15, 0.66, 0.24  # inches
WIDEST, TALLEST = 3.6, 3.4  # inches, of a cell
LETTER = 0.088  # inches, of a bold title


@dataclass(frozen=True)
class PanelRow:
    """One row of the figure."""

    name: str
    image: NDArray[np.uint8]  # (height, width, 3), the part that the models see
    aspect: float  # height / width of that part, undistorted
    colors: tuple[NDArray[np.float64], ...]  # (H, W, 3) in 0..1, one per column


@dataclass(frozen=True)
class PanelColumn:
    """The heading above the panels of one model."""

    title: str
    note: str = ""


def color_maps(maps: Sequence[Sequence[Tensor]]) -> list[list[NDArray[np.float64]]]:
    """Color maps (C, H, W), by column and image, in the colors of the first column.

    Each image has its own colors, those of its foreground, so that parts of an object differ. A
    column with other channels than the first gets colors of its own.
    """
    first = [PCA.fit_foreground(one) for one in maps[0]]
    result = []
    for column in maps:
        pairs = zip(first, column, strict=True)
        fitted = [f if len(f.mean) == len(one) else PCA.fit_foreground(one) for f, one in pairs]
        result.append(
            [
                pca.apply(one.permute(1, 2, 0)).numpy()
                for pca, one in zip(fitted, column, strict=True)
            ]
        )
    return result


def shrink(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shrink an image to what the figure can show."""
    small = Image.fromarray(image)
    small.thumbnail((SIDE, SIDE))
    return np.asarray(small)


def cells_png(colors: NDArray[np.float64], aspect: float) -> bytes:
    """Draw colors (H, W, 3) in 0..1 as a PNG file, as high for its width as the image is."""
    width = SIDE / max(1.0, aspect)
    size = max(1, round(width)), max(1, round(width * aspect))
    cells = Image.fromarray((colors * 255).round().astype(np.uint8))
    file = io.BytesIO()
    cells.resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def pca_figure(rows: Sequence[PanelRow], columns: Sequence[PanelColumn]) -> Figure:
    """Draw images and, beside each, the tokens of every column."""
    count = len(columns) + 1
    width = min((WIDTH - 2 * MARGIN - GAP * (count - 1)) / count, WIDEST)
    whole = 2 * MARGIN + count * width + GAP * (count - 1)
    heights = [min(width * row.aspect, TALLEST) for row in rows]
    total = HEAD + sum(heights) + NAME * len(heights) + MARGIN
    figure = Figure(figsize=(whole, total), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    letters = int(width / LETTER)
    for index, column in enumerate([PanelColumn("image"), *columns]):
        left = MARGIN + index * (width + GAP)
        _write(figure, left, total - 0.14, _shorten(column.title, letters), size=11, bold=True)
        _write(figure, left, total - 0.38, column.note, size=9)
    top = total - HEAD
    for row, height in zip(rows, heights, strict=True):
        panels: list[NDArray[Any]] = [row.image, *row.colors]
        for index, panel in enumerate(panels):
            left = MARGIN + index * (width + GAP)
            box = (left / whole, (top - height) / total, width / whole, height / total)
            _draw(figure.add_axes(box), panel, image=index == 0)
        name = _shorten(PurePosixPath(row.name).name, 2 * letters)
        _write(figure, MARGIN, top - height - 0.045, name, size=8.5)
        top -= height + NAME
    return figure


def _draw(axes: Axes, panel: NDArray[Any], *, image: bool) -> None:
    axes.set_axis_off()
    smoothing = "antialiased" if image else "nearest"  # tokens are cells with sharp edges
    axes.imshow(panel, interpolation=smoothing, aspect="auto", extent=(0, 1, 1, 0))


def _write(
    figure: Figure, x: float, y: float, text: str, *, size: float, bold: bool = False
) -> None:
    """Write with the upper left corner at (x, y), in inches from the bottom left."""
    figure.text(
        x / figure.get_figwidth(),
        y / figure.get_figheight(),
        text,
        size=size,
        weight="bold" if bold else "normal",
        color=INK if bold else FAINT,
        va="top",
        parse_math=False,
    )


def _shorten(text: str, length: int) -> str:
    """Keep the end of a long name, where checkpoints differ."""
    return text if len(text) <= length else f"…{text[1 - length :]}"
