"""The page of a cure: how the training went and what it brought."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clearvit.backbones.sources.snippets import runnable_here, timm_code
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.results.card import result_rows, trained_parts
from clearvit.cures.results.cure_report import CureReport
from clearvit.report.chart import new_chart, series_colors, style_axes
from clearvit.report.elements import Command, Facts, ImageElement, Paragraph, Section, Table
from clearvit.report.page import write_page

PAGE = "cure.html"


def write_cure_page(folder: Path, cured: VitBackbone, original: str, config: CureConfig) -> Path:
    """Write the page of a finished run.

    Args:
        folder: The directory of the run.
        cured: The model, with the report of its training.
        original: Name of the model that was cured.
        config: How it was cured.
    """
    report: CureReport = cured.report
    height, width = cured.fitting_size(config.size)
    facts = (
        ("images", f"{report.images:,}"),
        ("size", f"{height} x {width} px"),
        ("views of a target", str(config.views)),
        ("new registers", str(report.registers)),
    )
    changed: list[Facts | Table | ImageElement] = [Facts(facts)]
    if report.before is not None:
        changed += _measured(report, report.before)
    how = (
        Paragraph(f"Trained: {trained_parts(config)}."),
        Command(runnable_here(timm_code(folder, cured)), "Loads the result:"),
    )
    sections = [Section("What changed", tuple(changed)), Section("How", how)]
    return write_page(folder / PAGE, f"Cure of {original}", sections)


def _measured(report: CureReport, before: float) -> list[Table | ImageElement]:
    table = Table(
        ("measured", "before", "after"),
        tuple(result_rows(report)),
        caption="On images that were held out of the training.",
    )
    curve = ImageElement(
        _draw_curve(report, before),
        alt="Distance of the held-out patch tokens to their targets after every epoch",
        caption="Distance to the average of the views on held-out images; the best epoch is kept.",
    )
    return [table, curve]


def _draw_curve(report: CureReport, before: float) -> Figure:
    figure, (axes,) = new_chart(7.5, 3.2)
    points = [(row.epoch, row.distance) for row in report.epochs if row.distance is not None]
    axes.plot(*zip(*points, strict=True), marker="o", color=series_colors(1)[0])
    axes.axhline(before, linestyle="--", linewidth=1, color="0.5")
    last = (points[-1][0], before)
    axes.annotate("the original", last, (0, 3), textcoords="offset points", ha="right", va="bottom")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style_axes(axes, "Held-out images", x="epoch", y="1 - cosine to the target")
    return figure
