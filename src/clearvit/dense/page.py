"""The page of a discovery: photos with their boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearvit.dense.discover import Found
from clearvit.dense.draw import draw_boxes
from clearvit.images import read_image
from clearvit.report.elements import Element, Facts, Paragraph, Picture, Section
from clearvit.report.page import write_page

MOST = 24  # photos on the page


def write_boxes_page(
    path: Path,
    found: Sequence[Found],
    sources: Mapping[str, Any],
    *,
    model: str,
    method: str,
    corloc: float | None = None,
) -> Path:
    """Write a page that shows what was found.

    Args:
        path: The .html file.
        found: One entry per photo.
        sources: Where each photo is, by its name.
        model: Name of the backbone.
        method: How boxes were found.
        corloc: Share of photos whose first box is right, in percent, where boxes are known.
    """
    facts = [("photos", str(len(found))), ("objects", str(sum(len(f.boxes) for f in found)))]
    facts += [] if corloc is None else [("CorLoc", f"{corloc:.1f} %")]
    shown = found[:MOST]
    pictures = draw_boxes([(read_image(sources[one.name]), one) for one in shown])
    names = ", ".join(one.name for one in shown)
    elements: list[Element] = [
        Facts(tuple(facts)),
        Picture(
            pictures,
            alt=f"Photos with a box around what was found: {names}",
            caption="The box, and faintly the patches that it stands for. Nobody told the model"
            " what an object is; there are no labels.",
        ),
    ]
    if len(found) > MOST:
        elements.append(Paragraph(f"The first {MOST} of {len(found)} photos.", faint=True))
    title = f"Objects found by {model}"
    return write_page(path, title, [Section("Boxes", tuple(elements))], subtitle=f"by '{method}'")
