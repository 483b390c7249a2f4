"""One slide per chapter of a report: its title above its first figure, for a talk."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from clearvit.report.figure import save_figure, write_text
from clearvit.report.page import read_page

SIZE, DPI = (1600, 900), 100  # pixels
MARGIN, TITLE, GAP = 60, 110, 30  # pixels around the figure, above it, between two


def write_slides(report: Path, folder: Path) -> list[Path]:
    """Write NN-title.png, 1600 x 900 pixels, for every chapter that has a figure.

    Args:
        report: A page that clearvit wrote, whose sections are the chapters.
        folder: Where the slides go.
    """
    page = read_page(report)
    written = []
    for number, chapter in enumerate(page.sections):
        title = str(chapter["title"])
        names = next(_figures_of(chapter), None)
        if names is None:
            continue
        words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].strip("-")
        slide = _draw(title, [Image.open(io.BytesIO(page.images[name])) for name in names])
        written.append(save_figure(slide, folder / f"{number:02d}-{words or 'chapter'}.png"))
    return written


def _figures_of(value: Any) -> Iterator[list[str]]:
    """Give the names of the images of each figure of a chapter; a slider has two, side by side."""
    if isinstance(value, list):
        for part in value:
            yield from _figures_of(part)
    elif isinstance(value, dict) and value.get("kind") == "Slider":
        yield [value["before"]["image"], value["after"]["image"]]
    elif isinstance(value, dict) and "image" in value:
        yield [value["image"]]
    elif isinstance(value, dict):
        yield from _figures_of(list(value.values()))


def _draw(title: str, images: list[Image.Image]) -> Figure:
    """Draw a title above images of one size that fill what is left as far as their shape allows."""
    width, height = SIZE
    room = (width - 2 * MARGIN) / len(images) - GAP, height - TITLE - MARGIN
    ratio = min(room[0] / images[0].width, room[1] / images[0].height)
    across, down = images[0].width * ratio, images[0].height * ratio
    left, bottom = (width - (across + GAP) * len(images) + GAP) / 2, MARGIN + (room[1] - down) / 2
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    for number, image in enumerate(images):
        start = left + number * (across + GAP)
        axes = figure.add_axes((start / width, bottom / height, across / width, down / height))
        axes.imshow(image.convert("RGB"), aspect="auto", interpolation="lanczos")
        axes.set_axis_off()
    write_text(figure, MARGIN / DPI, (height - 40) / DPI, title, size=24, weight="bold")
    return figure
