"""Before and after: patch tokens of each model as colours, in the first model's colour space."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.report.figure import DPI, FAINT, INK
from clearvit.report.pca import PCA

SIDE = 640  # pixels of the longer side of a photo as it is kept
WIDTH, GAP, MARGIN, HEAD, NAME = 12.8, 0.1, 0.15, 0.66, 0.24  # inches
WIDEST, TALLEST = 3.6, 3.4  # inches, of a cell
LETTER = 0.088  # inches, of a bold title


@dataclass(frozen=True)
class Exhibit:
    """One row of the picture."""

    name: str
    photo: NDArray[np.uint8]  # (height, width, 3), the part that the models see
    aspect: float  # height / width of that part, undistorted
    colours: tuple[NDArray[np.float64], ...]  # (H, W, 3) in 0..1, one per column


@dataclass(frozen=True)
class Column:
    """What stands above the pictures of one model."""

    title: str
    note: str = ""


def coloured(maps: Sequence[Sequence[Tensor]]) -> list[list[NDArray[np.float64]]]:
    """Colour maps (C, H, W), by column and photo, in the colour space of the first column.

    A column with other channels than the first gets a colour space of its own.
    """
    first = _fitted(maps[0])
    result = []
    for column in maps:
        pca = first if column[0].shape[0] == len(first.mean) else _fitted(column)
        result.append([pca.apply(one.permute(1, 2, 0)).numpy() for one in column])
    return result


def small(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shrink a photo to what the picture can show."""
    image = Image.fromarray(photo)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)


def cells_png(colours: NDArray[np.float64], aspect: float) -> bytes:
    """Draw colours (H, W, 3) in 0..1 as a PNG file, as high for its width as the photo is."""
    width = SIDE / max(1.0, aspect)
    size = max(1, round(width)), max(1, round(width * aspect))
    cells = Image.fromarray((colours * 255).round().astype(np.uint8))
    file = io.BytesIO()
    cells.resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def pca_figure(exhibits: Sequence[Exhibit], columns: Sequence[Column]) -> Figure:
    """Draw photos and, beside each, the tokens of every column."""
    count = len(columns) + 1
    width = min((WIDTH - 2 * MARGIN - GAP * (count - 1)) / count, WIDEST)
    whole = 2 * MARGIN + count * width + GAP * (count - 1)
    heights = [min(width * exhibit.aspect, TALLEST) for exhibit in exhibits]
    total = HEAD + sum(heights) + NAME * len(heights) + MARGIN
    figure = Figure(figsize=(whole, total), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    letters = int(width / LETTER)
    for place, column in enumerate([Column("photo"), *columns]):
        left = MARGIN + place * (width + GAP)
        _write(figure, left, total - 0.14, _ending(column.title, letters), size=11, bold=True)
        _write(figure, left, total - 0.38, column.note, size=9)
    top = total - HEAD
    for exhibit, height in zip(exhibits, heights, strict=True):
        pictures: list[NDArray[Any]] = [exhibit.photo, *exhibit.colours]
        for place, picture in enumerate(pictures):
            left = MARGIN + place * (width + GAP)
            box = (left / whole, (top - height) / total, width / whole, height / total)
            _draw(figure.add_axes(box), picture, photo=not place)
        name = _ending(PurePosixPath(exhibit.name).name, 2 * letters)
        _write(figure, MARGIN, top - height - 0.045, name, size=8.5)
        top -= height + NAME
    return figure


def _fitted(maps: Sequence[Tensor]) -> PCA:
    return PCA.fit(torch.cat([one.flatten(1).T for one in maps]))


def _draw(axes: Axes, picture: NDArray[Any], *, photo: bool) -> None:
    axes.set_axis_off()
    smoothing = "antialiased" if photo else "nearest"  # tokens are cells with sharp edges
    axes.imshow(picture, interpolation=smoothing, aspect="auto", extent=(0, 1, 1, 0))


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


def _ending(text: str, length: int) -> str:
    """Keep the end of a long name, where checkpoints differ."""
    return text if len(text) <= length else f"…{text[1 - length :]}"
