"""Attention of artifact tokens and registers as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from clearvit.artifacts.attention_sinks import ROWS, AttentionStats
from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.report.chart import BLUE, GREEN, ORANGE, new_chart, style_axes
from clearvit.report.elements import Cell, Details, Element, ImageElement, Paragraph, Section, Table
from clearvit.report.figure import FAINT

COLORS = {"class": BLUE, "register": GREEN, "patch": ORANGE}
WORDS = {"class": "class token", "register": "registers", "patch": "patches"}


def attention_section(diagnosis: Diagnosis) -> Section | None:
    """Say what artifact tokens and registers do in attention, with a chart and all numbers."""
    stats = diagnosis.attention
    if stats is None or not (stats.fraction or stats.register_fraction):
        return None
    figure = ImageElement(
        draw_attention(stats),
        alt=f"Attention by block. {stats}",
        caption="First: attention that goes to them, by who looks; the dashed line is their"
        " fraction of the tokens. Last: how widely patches look themselves; 1 is uniform"
        " attention. Each faint line is one head, the strong one their mean.",
    )
    elements: list[Element] = [Paragraph(str(stats)), figure]
    elements.append(Details("Every block and head", (_table(stats),)))
    return Section("Attention", tuple(elements))


def draw_attention(stats: AttentionStats) -> Figure:
    """Draw attention to artifact tokens, to registers, and entropy, block by block."""
    drawn = [
        ("artifact tokens", stats.to_artifacts, stats.fraction),
        ("registers", stats.to_registers, stats.register_fraction),
    ]
    drawn = [one for one in drawn if one[2]]
    figure, axes = new_chart(12.5, 3.4, 1 + len(drawn))
    for panel, (target, mass, fraction) in zip(axes, drawn, strict=False):
        for kind, values in zip(ROWS, mass, strict=True):
            if WORDS[kind] != target:  # registers look at each other much more than others do
                _curves(panel, 100 * values, WORDS[kind], COLORS[kind])
        panel.axhline(100 * fraction, color=FAINT, linestyle="--", linewidth=1.2)
        style_axes(panel, f"attention to {target}", x="block, from 0", y="% of attention")
    for name, values, color in zip(
        ("normal patches", "artifact tokens"), stats.entropy, (BLUE, ORANGE), strict=True
    ):
        _curves(axes[-1], values, name, color)
    style_axes(axes[-1], "entropy of attention", x="block, from 0", y="fraction of the uniform")
    for panel in axes:
        panel.set_ylim(0, 1.1 * max(panel.dataLim.y1, 1e-3))
        panel.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        panel.legend(fontsize=9, frameon=False, labelcolor=FAINT)
    return figure


def _curves(axes: Axes, values: Tensor, name: str, color: str) -> None:
    """Draw (L, h) as faint lines and their mean; nothing if none is known."""
    if values.isnan().all():
        return
    for head in values.T.tolist():
        axes.plot(head, color=color, linewidth=0.7, alpha=0.3)
    axes.plot(values.mean(-1).tolist(), "o-", color=color, label=name, markersize=4)


def _table(stats: AttentionStats) -> Table:
    header = ("block", "head", *(f"to artifacts, from {WORDS[kind]}" for kind in ROWS))
    header += tuple(f"to registers, from {WORDS[kind]}" for kind in ROWS)
    header += ("entropy, normal", "entropy, artifact", "largest, normal", "largest, artifact")
    parts = (stats.to_artifacts, stats.to_registers, stats.entropy, stats.concentration)
    rows: list[tuple[Cell, ...]] = []
    for block in range(stats.entropy.shape[1]):
        for head in range(stats.entropy.shape[2]):
            values = [float(row[block, head]) for part in parts for row in part]
            rows.append((block, head, *_cells(values)))
    return Table(header, tuple(rows), caption="Means over images; attention sums to 1.")


def _cells(values: Sequence[float]) -> list[str]:
    return ["" if value != value else f"{value:.3f}" for value in values]
