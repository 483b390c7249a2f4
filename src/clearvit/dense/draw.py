"""Boxes and masks drawn on the photos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from clearvit.dense.discover import Found
from clearvit.report.figure import Panel, draw_panels

COLOURS = ("#ffb000", "#00c2d1", "#ff5c8a", "#7bd13b", "#b48cff")  # readable on photos
LARGEST = 1000  # pixels of the longer side; the figure shows no more


def draw_boxes(
    pictures: Sequence[tuple[Image.Image, Found]],
    *,
    title: str = "",
    caption: str = "",
    per_row: int = 3,
) -> Figure:
    """Draw photos with their boxes and, faintly, the patches behind each box.

    Args:
        pictures: Upright RGB photos and what was found in them.
        title: One line above everything.
        caption: Small print below everything.
        per_row: Photos side by side.
    """
    panels = [_panel(image, found) for image, found in pictures]
    rows = [panels[i : i + per_row] for i in range(0, len(panels), per_row)]
    if len(rows) > 1:  # the last row keeps the width of the others
        rows[-1] = rows[-1] + [Panel("")] * (per_row - len(rows[-1]))
    figure = draw_panels(rows, title, caption)
    for axes, (_, found) in zip(figure.axes, pictures, strict=False):
        _mark(axes, found)
    return figure


def _panel(image: Image.Image, found: Found) -> Panel:
    small = image.copy()
    small.thumbnail((LARGEST, LARGEST))
    count = len(found.boxes)
    scores = ", ".join(f"{score:.2f}" for score in found.scores)
    note = f"{count} object{'s' * (count != 1)}, score {scores}"
    if found.degenerate:
        note = "features could not tell patches apart"
    return Panel(
        found.name.rsplit("/", 1)[-1],
        picture=np.asarray(small.convert("RGB")),
        note=note,
        aspect=found.size[0] / found.size[1],
    )


def _mark(axes: Axes, found: Found) -> None:
    """Draw the objects of one photo on axes that run from 0 to 1."""
    height, width = found.size
    left, upper, right, lower = found.shown
    extent = (left / width, right / width, lower / height, upper / height)
    for number, (box, mask) in enumerate(zip(found.boxes, found.masks.numpy(), strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        tint = np.zeros((*mask.shape, 4))
        tint[mask] = (*to_rgb(colour), 0.2)
        axes.imshow(tint, interpolation="nearest", aspect="auto", extent=extent)
        corner = (box[0] / width, box[1] / height)
        across, down = (box[2] - box[0]) / width, (box[3] - box[1]) / height
        # A dark line below the coloured one shows on bright ground.
        for line, ink in ((4.5, "#00000099"), (2.4, colour)):
            axes.add_patch(
                Rectangle(corner, across, down, fill=False, linewidth=line, edgecolor=ink)
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
