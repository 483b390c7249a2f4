"""The report of a comparison: an HTML page, JSON, and the PCA figure."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clearvit import __version__
from clearvit.artifacts.report.series import shorten_name
from clearvit.comparison.compare import Comparison
from clearvit.comparison.comparison_table import TIMES, block_range, percent, table_cells
from clearvit.comparison.norm_rule import NormRule
from clearvit.comparison.pca_panels import cells_png, pca_figure
from clearvit.comparison.reference import FEW
from clearvit.comparison.structures import structure_section
from clearvit.files import replace_json
from clearvit.report.chart import MARKERS, new_chart, series_colors, style_axes
from clearvit.report.elements import (
    Command,
    Details,
    Element,
    ImageElement,
    Link,
    Paragraph,
    Section,
    Slider,
    Table,
    Tabs,
)
from clearvit.report.figure import FAINT, save_figure
from clearvit.report.page import render_png, replace_nonfinite, write_page

TABS = 6  # images with a slider


def write_comparison(comparison: Comparison, out: Path, microscope: str | None = None) -> Path:
    """Write the three files into a directory; gives the page, with a link to a microscope."""
    replace_json(out / "compare.json", comparison_json(comparison))
    if comparison.panel_rows:
        save_figure(pca_figure(comparison.panel_rows, comparison.panel_columns), out / "pca.png")
    title = f"Comparison of {len(comparison.rows)} models"
    if len(comparison.rows) == 1:
        title = f"Tokens of {comparison.rows[0].model}"
    sections = comparison_sections(comparison, microscope)
    return write_page(out / "compare.html", title, sections, subtitle=_subtitle(comparison))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Give all numbers; those that JSON does not know are None."""
    finite: dict[str, Any] = replace_nonfinite(comparison.to_json())
    return finite


def comparison_sections(comparison: Comparison, microscope: str | None = None) -> list[Section]:
    """Give the sections of the page."""
    panels = _panels(comparison)
    if panels is not None and microscope is not None:
        text = "Point at a patch of these images, and see what is similar to it in every model"
        panels = Section(panels.title, (*panels.elements, Link(text, microscope)))
    sections = [_table(comparison), panels, _norms(comparison)]
    if comparison.structures is not None:
        sections.append(structure_section(comparison.structures))
    sections.append(_methods(comparison))
    return [section for section in sections if section is not None]


def _table(comparison: Comparison) -> Section:
    header, rows = table_cells(comparison)
    elements: list[Element] = [Table(header, rows, caption=caption(comparison))]
    for row in comparison.rows:
        elements += [Paragraph(f"{row.model}: {note}.", faint=True) for note in row.notes]
    if comparison.skipped:
        lines = tuple(Paragraph(f"{bad.name}: {bad.reason}") for bad in comparison.skipped)
        count = len(lines)
        elements.append(Details(f"{count} file{'s' * (count != 1)} skipped", lines))
    elements.append(Command(comparison.next_command, "Next:"))
    return Section("The table", tuple(elements))


def caption(comparison: Comparison) -> str:
    """Say in a few sentences what the columns are."""
    gap, rule = comparison.gap, comparison.rule
    first = comparison.rows[0].model
    parts = [f"Models in the order given; '{first}' is the baseline."]
    if rule is None:
        parts.append("No model has high- or low-norm tokens.")
    else:
        word = "above" if rule.side == "high" else "below"
        parts.append(
            f"{rule.side.capitalize()}-norm tokens: norm {word} {rule.cutoff:.2f} {TIMES} the"
            f" median of their image at block {rule.peak} (blocks are counted from 0), the cutoff"
            f" of '{rule.model}', for all models."
        )
    parts.append(
        "Change with shift: how much features change when the image is shifted, relative to the"
        " distance between different contents. Distance: mean of 1 - cosine of the patches to the"
        f" average of {gap.views} views of the first model, {len(gap.images)} images; the average"
        f" of {FEW} views is at {gap.few:.4f}, where 100 % of the gap is closed. Class token"
        " cosine: mean similarity to the class token of the first model."
    )
    if comparison.labeled:
        parts.append(
            f"{comparison.neighbors}-NN: leave-one-out accuracy on {comparison.labeled} labeled"
            " images."
        )
    return " ".join(parts)


def _panels(comparison: Comparison) -> Section | None:
    if not comparison.panel_rows:
        return None
    names = ", ".join(row.name for row in comparison.panel_rows)
    figure = ImageElement(
        render_png(pca_figure(comparison.panel_rows, comparison.panel_columns)),
        alt=f"Images and the patch tokens of each model as colors: {names}",
        caption="First three principal components of the patch tokens as red, green and blue,"
        " fitted on the foreground of each image with the first model: within a row, equal colors"
        " mean equal features. On the right the average over views of the first model.",
    )
    return Section("Before and after", (*_sliders(comparison), figure))


def _sliders(comparison: Comparison) -> list[Element]:
    """Lay the tokens of the second column over those of the first, image by image."""
    if len(comparison.panel_columns) < 2:
        return []
    names = (comparison.panel_columns[0].title, comparison.panel_columns[1].title)
    items = []
    for row in comparison.panel_rows[:TABS]:
        before, after = (cells_png(colors, row.aspect) for colors in row.colors[:2])
        slider = Slider(before, after, names, alt=f"Patch tokens of {row.name} as colors")
        items.append((PurePosixPath(row.name).name, (slider,)))
    return [Tabs("Image", tuple(items))]


def _norms(comparison: Comparison) -> Section | None:
    rule = comparison.rule
    if rule is None:
        return None
    known = [row for row in comparison.rows if row.outlier_fractions is not None]
    header = ("block", "cutoff", *(row.model for row in known))
    rows = tuple(
        (
            str(block),
            f"{outliers.cutoff:.2f} {TIMES}",
            *(percent((row.outlier_fractions or ())[i], 2) for row in known),
        )
        for i, (block, outliers) in enumerate(zip(rule.blocks, rule.outliers, strict=True))
    )
    elements: list[Element] = [
        ImageElement(
            norm_figure(comparison, rule),
            alt="Tokens beyond the cutoff, and the largest norm, by block and model.",
            caption=f"Left: tokens beyond the cutoffs of '{rule.model}', in the blocks where it has"
            " artifacts. Right: the largest norm of every block.",
        ),
        Table(header, rows, caption="Fraction of tokens beyond the cutoff, block by block."),
    ]
    registers = [row for row in known if row.register_norms]
    if registers:
        text = "; ".join(
            f"{row.model}: {min(row.register_norms):.1f} to {max(row.register_norms):.1f} {TIMES}"
            for row in registers
        )
        elements.append(
            Paragraph(
                f"Mean norms of the registers at block {rule.peak}, relative to the median of the"
                f" patches: {text}. Registers that took over the role of artifacts have high norms."
            )
        )
    return Section(f"Where '{rule.model}' has artifact tokens", tuple(elements))


def norm_figure(comparison: Comparison, rule: NormRule) -> Figure:
    """Draw fractions beyond the cutoffs, and the largest norms, one line per model."""
    figure, (left, right) = new_chart(12.5, 3.6, 2)
    colors = series_colors(len(comparison.rows))
    for number, (row, diagnosis) in enumerate(
        zip(comparison.rows, comparison.diagnoses, strict=True)
    ):
        marker, name = MARKERS[number % len(MARKERS)], shorten_name(row.model)
        look = {"marker": marker, "markersize": 5, "linewidth": 1.6, "color": colors[number]}
        if row.outlier_fractions is not None:
            percentages = [100 * fraction for fraction in row.outlier_fractions]
            left.plot(rule.blocks, percentages, label=name, **look)
        if diagnosis is not None and len(diagnosis.blocks) == rule.depth:
            right.plot(range(rule.depth), [block.largest for block in diagnosis.blocks], **look)
    left.set_ylim(bottom=0)
    style_axes(
        left,
        f"{rule.side}-norm tokens, blocks {block_range(rule.blocks)}",
        x="block, from 0",
        y="% of tokens",
    )
    style_axes(right, "largest norm", x="block, from 0", y=f"{TIMES} median of the image")
    for axes in (left, right):
        _whole_numbers(axes)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(4, len(comparison.rows)),
        fontsize=9,
        frameon=False,
        labelcolor=FAINT,
    )
    return figure


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))


def _methods(comparison: Comparison) -> Section:
    gap = comparison.gap
    few = (
        f"At this grid one forward pass of the first model is at {gap.raw:.4f} and the average of"
        f" {FEW} views at {gap.few:.4f}."
    )
    paragraphs = (
        "Reference. The first model sees shifted and mirrored views of an image; their tokens are"
        " shifted back and averaged. What depends on the position instead of the content averages"
        f" out. {few} It is no ground truth: it says how far a model is from a denoised first"
        " model, not how good its features are.",
        "Gap closed. (raw - model) / (raw - ten views), each a distance to the reference: 0 % is"
        " the first model, 100 % what ten forward passes would give, above is better than that.",
        "Artifact tokens. All models are counted with the same cutoffs, block by block, before the"
        " final norm. The verdict is each model's own.",
        "Cost. Batch size 1, interleaved rounds; the median over rounds, and the median of the"
        " ratio to the first model in the same round.",
    )
    return Section("How it was measured", tuple(Paragraph(text) for text in paragraphs))


def _subtitle(comparison: Comparison) -> str:
    height, width = comparison.size
    count = len(comparison.images)
    return (
        f"{count} image{'s' * (count != 1)} at {height} {TIMES} {width} px. Made by clearvit"
        f" {__version__}; the same numbers are in compare.json."
    )
