"""Hits of a region: the part that was asked for, and where it lies in every image found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from clearvit.errors import ImageError
from clearvit.report.chart import BLUE, ORANGE
from clearvit.report.elements import ImageElement, Notice, Paragraph, Section, Table
from clearvit.report.figure import Array, Panel, draw_panels
from clearvit.report.page import write_page
from clearvit.retrieval.index.hits import WEAK, Box, Hit, Hits

PER_ROW = 4
SHOWN = 12  # hits in the figure of a page
LARGEST = 600  # pixels of the longer side of an image


def draw_regions(hits: Sequence[Hit]) -> Figure:
    """Draw the query with its region, then hits with the box of each that stands out."""
    query = hits[0].query
    if query.image is None or query.region is None:
        raise ImageError("only hits of a region have boxes to draw.")
    panels = [Panel(_short(query.name), _boxed(query.image, query.region, BLUE), note="query")]
    for hit in hits:
        note = f"rank {hit.rank}, score {hit.score:.3f}"
        if not hit.stands_out:
            note += f"; {WEAK}"
        try:
            box = hit.box if hit.stands_out else None
            panels.append(Panel(_short(hit.name), _boxed(hit.read(), box, ORANGE), note=note))
        except ImageError:  # the features are in the index, the file may be gone
            panels.append(Panel(_short(hit.name), note=f"{note}; the file cannot be read"))
    if len(panels) > PER_ROW:  # fill up the last row, so that all are of one width
        panels += [Panel("", aspect=0.1)] * (-len(panels) % PER_ROW)
    rows = [panels[start : start + PER_ROW] for start in range(0, len(panels), PER_ROW)]
    return draw_panels(rows, "Where the region of the query lies in other images")


def region_page(hits: Hits, path: str | Path) -> Path:
    """Write one HTML page about the hits of a region."""
    if not len(hits):
        section = Section("Hits", (Notice("Nothing found", hits.note, "warn"),))
        return write_page(Path(path), "A region", [section])
    listed = tuple((hit.rank, hit.name, hit.score, hit.place) for hit in hits)
    header = ("rank", "image", "score", "x0, y0, x1, y1")
    shown = ImageElement(draw_regions(hits[:SHOWN]), alt="The region and its place in each hit")
    parts = (Paragraph(hits.note), shown, Table(header, listed))
    title = f"Images that show a part of {_short(hits.query.name)}"
    return write_page(Path(path), title, [Section("Hits", parts)])


def _boxed(image: Image.Image, box: Box | None, color: str) -> Array:
    """Draw a box, in pixels of the image, on a copy of it; (height, width, 3)."""
    scale = LARGEST / max(image.size)  # a small image is enlarged, else a box would hide its part
    small = image.resize(
        (max(1, round(scale * image.width)), max(1, round(scale * image.height))),
        Image.Resampling.BICUBIC,
    )
    if box is not None:
        sides = tuple(round(scale * side) for side in box)
        draw = ImageDraw.Draw(small)
        width = max(2, max(small.size) // 120)
        draw.rectangle(sides, outline="white", width=width + 2)
        draw.rectangle(sides, outline=color, width=width)
    return np.asarray(small)


def _short(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name or name
    return last if len(last) <= 28 else f"{last[:12]}…{last[-14:]}"
