"""Boxes and masks drawn on the images, as a figure and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw

from clearvit.discovery.discover import Discoveries, ImageObjects
from clearvit.errors import ImageError
from clearvit.files import short_name
from clearvit.images import ImageSource, read_image
from clearvit.progress import Meter, show_progress
from clearvit.report.elements import Element, Facts, ImageElement, Paragraph, Section
from clearvit.report.figure import Panel, draw_panels, save_figure
from clearvit.report.notebook import THUMBNAIL, heat, png_of
from clearvit.report.page import write_page

MAX_IMAGES = 24  # on the page
COLORS = ("#ffb000", "#00c2d1", "#ff5c8a", "#7bd13b", "#b48cff")  # readable on images
MAX_SIDE = 1000  # pixels of the longer side; the figure shows no more


def draw_boxes(
    images: Sequence[tuple[Image.Image, ImageObjects]],
    *,
    title: str = "",
    caption: str = "",
    per_row: int = 3,
) -> Figure:
    """Draw images with their boxes and, faintly, the patches behind each box.

    Args:
        images: Upright RGB images and the objects found in them.
        title: One line above everything.
        caption: Small print below everything.
        per_row: Images side by side.
    """
    panels = [_panel(image, found) for image, found in images]
    rows = [panels[i : i + per_row] for i in range(0, len(panels), per_row)]
    if len(rows) > 1:  # the last row keeps the width of the others
        rows[-1] = rows[-1] + [Panel("")] * (per_row - len(rows[-1]))
    figure = draw_panels(rows, title, caption)
    for axes, (_, found) in zip(figure.axes, images, strict=False):
        _draw_objects(axes, found)
    return figure


def _panel(image: Image.Image, found: ImageObjects) -> Panel:
    small = image.copy()
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    count = len(found.boxes)
    scores = ", ".join(f"{score:.2f}" for score in found.scores)
    note = f"{count} object{'s' * (count != 1)}, score {scores}"
    if found.degenerate:
        note = "the features do not separate the patches"
    return Panel(
        found.name.rsplit("/", 1)[-1],
        image=np.asarray(small.convert("RGB")),
        note=note,
        aspect=found.size[0] / found.size[1],
    )


def _draw_objects(axes: Axes, found: ImageObjects) -> None:
    """Draw the objects of one image on axes that run from 0 to 1."""
    height, width = found.size
    left, upper, right, lower = found.crop
    extent = (left / width, right / width, lower / height, upper / height)
    for number, (box, mask) in enumerate(zip(found.boxes, found.masks.numpy(), strict=True)):
        color = COLORS[number % len(COLORS)]
        tint = np.zeros((*mask.shape, 4))
        tint[mask] = (*to_rgb(color), 0.2)
        axes.imshow(tint, interpolation="nearest", aspect="auto", extent=extent)
        corner = (box[0] / width, box[1] / height)
        across, down = (box[2] - box[0]) / width, (box[3] - box[1]) / height
        # A dark line below the colored one is visible on bright images.
        for line, ink in ((4.5, "#00000099"), (2.4, color)):
            axes.add_patch(
                Rectangle(corner, across, down, fill=False, linewidth=line, edgecolor=ink)
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)


def draw_thumbnail(found: ImageObjects, source: str | Path | Image.Image | None) -> bytes:
    """Draw the boxes on a small image, a PNG file; without the image, the masks on the grid."""
    try:
        image = read_image(source).copy() if source is not None else None
    except (ImageError, OSError):
        image = None
    if image is None:
        count = len(found.masks)
        # objects differ in brightness
        order = torch.arange(count, 0, -1, device=found.masks.device)
        shown = (found.masks * order[:, None, None]).amax(0) if count else torch.zeros(1, 1)
        return png_of(heat(shown.cpu().double().numpy()))
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    drawing = ImageDraw.Draw(image)
    ratio = image.width / found.size[1], image.height / found.size[0]
    for number, (x0, y0, x1, y1) in enumerate(found.boxes):
        corners = (x0 * ratio[0], y0 * ratio[1], x1 * ratio[0] - 1, y1 * ratio[1] - 1)
        drawing.rectangle(corners, outline="black", width=3)
        drawing.rectangle(corners, outline=COLORS[number % len(COLORS)], width=2)
    return png_of(image)


def write_boxes_page(
    path: Path,
    found: Sequence[ImageObjects],
    sources: Mapping[str, Any],
    *,
    model: str,
    method: str,
    corloc: float | None = None,
) -> Path:
    """Write a page that shows the boxes on the images.

    Args:
        path: The .html file.
        found: One entry per image.
        sources: File or PIL image by name.
        model: Name of the backbone.
        method: Discovery method.
        corloc: Percentage of images whose first box is correct, where boxes are known.
    """
    facts = [("images", str(len(found))), ("objects", str(sum(len(f.boxes) for f in found)))]
    facts += [] if corloc is None else [("CorLoc", f"{corloc:.1f} %")]
    first = found[:MAX_IMAGES]
    figure = draw_boxes([(read_image(sources[one.name]), one) for one in first])
    names = ", ".join(one.name for one in first)
    elements: list[Element] = [
        Facts(tuple(facts)),
        ImageElement(
            figure,
            alt=f"Images with boxes around the objects found: {names}",
            caption="Boxes and, faintly, the patches behind them. Found without labels.",
        ),
    ]
    if len(found) > MAX_IMAGES:
        elements.append(Paragraph(f"The first {MAX_IMAGES} of {len(found)} images.", faint=True))
    title = f"Objects found by {model}"
    return write_page(path, title, [Section("Boxes", tuple(elements))], subtitle=f"by '{method}'")


def draw_discoveries(
    found: Discoveries, images: Sequence[ImageSource], out: Path, report: Mapping[str, Any]
) -> Path:
    """Draw the boxes on each image, in a file named like it, and write the page of all.

    Args:
        found: What `cv.discover` returned.
        images: The images, with their names.
        out: The directory.
        report: "model", "method" and perhaps "corloc", for the page.
    """
    sources = {image.name: image.source for image in images}
    with show_progress() as progress:
        meter = Meter(progress, len(found), "drawings")
        for one in found:
            path = PurePosixPath(one.name)
            # Parts of a name may lead out of the directory; a.jpg and a.png may both exist.
            parts = [part for part in path.parts if part not in ("/", "..", ".")]
            target = out.joinpath(*parts[:-1], f"{short_name(parts[-1])}.png")
            save_figure(draw_boxes([(read_image(sources[one.name]), one)]), target)
            meter.advance()
    return write_boxes_page(
        out / "boxes.html",
        found,
        sources,
        model=report["model"],
        method=report["method"],
        corloc=report.get("corloc"),
    )
