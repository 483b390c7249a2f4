"""The page of a run: the least certain masks first, so that one knows where to look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from clearvit.errors import ImageError
from clearvit.report.elements import Element, Facts, ImageElement, Paragraph, Section, Table
from clearvit.report.figure import DPI, WIDTH, Panel, draw_panels
from clearvit.report.page import write_page
from clearvit.segmentation.mask_results import PALETTE, Mask, Masks
from clearvit.segmentation.method_choice import Candidate, Choice

SHOWN, PER_ROW, SIDE = 24, 4, 480  # masks, side by side, pixels of the longer side


def write_contact_sheet(path: Path, masks: Masks) -> Path:
    """Write a page with the least certain masks on their images, and what made them."""
    choice = masks.segmenter.choice
    edited = sum(mask.edited for mask in masks)
    facts = [("images", str(len(masks))), ("classes", str(len(masks.classes)))]
    facts += [("method", str(choice.chosen))]
    if not math.isnan(choice.chosen.miou):
        facts.append(("mIoU on held-out examples", f"{choice.chosen.miou:.1f}"))
    facts += [("edited by hand", str(edited))] if edited else []
    least = masks.least_confident(SHOWN)
    elements: list[Element] = [Facts(tuple(facts)), *_draw(least)]
    if len(least) < len(masks):
        note = f"The {len(least)} least certain of {len(masks)} masks; masks.json lists all."
        elements.append(Paragraph(note, faint=True))
    elements.append(
        Paragraph(
            "Correct a mask in any editor of indexed PNG files, copy it into the examples, and run"
            " the same command again: what the new model decides otherwise is made again, and a"
            " mask that you changed here is kept."
        )
    )
    sections = [Section("Look here next", tuple(elements))]
    if choice.candidates:
        sections.append(Section("How the method was chosen", (_candidates(masks),)))
    return write_page(
        path, "Masks by example", sections, subtitle=f"made with {masks.segmenter.model}"
    )


def _draw(masks: Sequence[Mask]) -> list[Element]:
    """Draw masks on their images; one that cannot be read any more is left out."""
    panels = []
    for mask in masks:
        try:
            shown = np.asarray(mask.show(SIDE))
        except ImageError:
            continue
        name = mask.name.rsplit("/", 1)[-1]
        note = f"confidence {mask.confidence:.2f}"
        panels.append(Panel(name[-24:], image=shown, note=note))
    if not panels:
        return []
    rows = [panels[i : i + PER_ROW] for i in range(0, len(panels), PER_ROW)]
    rows[-1] = rows[-1] + [Panel("")] * (min(PER_ROW, len(panels)) - len(rows[-1]))
    names = ", ".join(mask.name for mask in masks)
    classes = masks[0].classes
    return [
        ImageElement(draw_panels(rows), alt=f"Masks drawn on their images: {names}"),
        ImageElement(_legend(classes), alt=f"Colors: {', '.join(classes.values())}"),
    ]


def _legend(classes: dict[int, str]) -> Figure:
    """Draw the colors of the classes, without number 0, which is not drawn; at most twelve."""
    colors = np.array(PALETTE).reshape(256, 3) / 255
    shown = [(n, name) for n, name in classes.items() if n][:12]
    handles = [Patch(color=colors[n], label=name[:24]) for n, name in shown]
    figure = Figure(figsize=(WIDTH, 0.35 * max(1, -(-len(handles) // PER_ROW))), dpi=DPI)
    figure.legend(handles=handles, ncols=PER_ROW, loc="center left", frameon=False)
    return figure


def _candidates(masks: Masks) -> Table:
    choice = masks.segmenter.choice
    rows = tuple(
        (
            str(one),
            round(one.miou, 1),
            f"{one.low:.1f} to {one.high:.1f}",
            _mark(one, choice),
        )
        for one in choice.candidates
    )
    caption = (
        f"On {choice.held_out}. The first of each kind is preferred; another is taken if it is"
        " better in four of five resamples of the examples."
    )
    return Table(("candidate", "mIoU, %", "95 % interval", "chosen"), rows, caption)


def _mark(one: Candidate, choice: Choice) -> str:
    return "yes" if str(one) == str(choice.chosen) else ""
