"""The page of a cure: how the training went and what it brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clearvit.cure.card import Row
from clearvit.report.chart import chart, dress, series_colours
from clearvit.report.elements import Command, Facts, Paragraph, Picture, Section, Table
from clearvit.report.page import write_page

PAGE = "cure.html"


def write_cure_page(
    folder: Path,
    plan: Mapping[str, Any],
    history: Sequence[Mapping[str, float]],
    rows: Sequence[Row],
    code: str,
) -> Path:
    """Write the page of a finished run.

    Args:
        folder: The directory of the run.
        plan: What was decided before the training.
        history: After every epoch: "epoch", "score" (held-out cosine), "class".
        rows: What was measured before and after.
        code: Python that loads the result.
    """
    height, width = plan["size"]
    parts = [p for p in plan["unlock"] if plan["registers"] or p != "registers"]
    trained = ", ".join(parts) or "nothing"
    facts = (
        ("images", f"{plan['images']:,}"),
        ("size", f"{height} x {width} px"),
        ("views of a target", str(plan["views"])),
        ("new registers", str(plan["registers"])),
    )
    table = Table(
        ("measured", "before", "after"),
        tuple((row.name, row.before, row.after) for row in rows),
        caption="On images that were kept out of the training.",
    )
    curve = Picture(
        _curve(history, rows),
        alt="Distance of the held-out patch tokens to their targets after every epoch",
        caption="Distance to the average of the views on held-out images; the best epoch is kept.",
    )
    sections = [
        Section("What changed", (Facts(facts), table, curve)),
        Section("How", (Paragraph(f"Trained: {trained}."), Command(code, "Loads the result:"))),
    ]
    return write_page(folder / PAGE, f"Cure of {plan['model']}", sections)


def _curve(history: Sequence[Mapping[str, float]], rows: Sequence[Row]) -> Figure:
    figure, (axes,) = chart(7.5, 3.2)
    epochs = [point["epoch"] for point in history]
    axes.plot(epochs, [1 - p["score"] for p in history], marker="o", color=series_colours(1)[0])
    axes.axhline(float(rows[0].before), linestyle="--", linewidth=1, color="0.5")
    axes.annotate("the original", (epochs[-1], float(rows[0].before)), ha="right", va="bottom")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, "Held-out images", x="epoch", y="1 - cosine to the target")
    return figure
