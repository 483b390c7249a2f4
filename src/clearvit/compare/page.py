"""The report of a comparison: a page for people, JSON for programs, and the PCA as a picture."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clearvit import __version__
from clearvit.compare.compare import Comparison
from clearvit.compare.norms import NormRule
from clearvit.compare.picture import cells_png, pca_figure
from clearvit.compare.reference import FEW
from clearvit.compare.table import TIMES, percent, span, table
from clearvit.diagnose.compare import shortened
from clearvit.errors import StoreError
from clearvit.files import write_json
from clearvit.report.chart import MARKERS, chart, dress, series_colours
from clearvit.report.elements import (
    Command,
    Details,
    Element,
    Paragraph,
    Picture,
    Section,
    Slider,
    Table,
    Tabs,
)
from clearvit.report.figure import FAINT, save_figure
from clearvit.report.page import png, write_page

TABS = 6  # photos with a slider


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write the three files into a directory; gives the page."""
    try:
        write_json(out / "compare.json", comparison_json(comparison))
    except OSError as error:
        raise StoreError(
            f"'{out}' cannot be written ({error.strerror or error}); choose another place."
        ) from error
    if comparison.exhibits:
        save_figure(pca_figure(comparison.exhibits, comparison.columns), out / "pca.png")
    title = f"Comparison of {len(comparison.rows)} models"
    if len(comparison.rows) == 1:
        title = f"Tokens of {comparison.rows[0].model}"
    sections = comparison_sections(comparison)
    return write_page(out / "compare.html", title, sections, subtitle=_subtitle(comparison))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Give all numbers; those that JSON does not know are None."""
    finite: dict[str, Any] = _finite(comparison.to_json())
    return finite


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Give the sections of the page."""
    sections = [_table(comparison), _picture(comparison), _norms(comparison), _methods(comparison)]
    return [section for section in sections if section is not None]


def _table(comparison: Comparison) -> Section:
    header, rows = table(comparison)
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
    yardstick, rule = comparison.yardstick, comparison.rule
    first = comparison.rows[0].model
    parts = [f"Models in the order given; '{first}' is what the others are held against."]
    if rule is None:
        parts.append("No model has artifact tokens by their norm.")
    else:
        word = "longer" if rule.side == "high" else "shorter"
        parts.append(
            f"{rule.side.capitalize()}-norm tokens: {word} than {rule.cutoff:.2f} {TIMES} the"
            f" median of their image at block {rule.peak + 1}, the cutoff of '{rule.model}', for"
            " all models."
        )
    parts.append(
        "Shifted: how much features change with a shift, as a share of the distance of different"
        " contents. Distance: mean of 1 - cosine of the patches to the average of"
        f" {yardstick.views} views of the first model, {len(yardstick.images)} images; the average"
        f" of {FEW} views is at {yardstick.few:.4f} and counts as a gap closed to 100 %. Class"
        " token kept: mean cosine to that of the first model."
    )
    if comparison.labelled:
        parts.append(
            f"{comparison.neighbours}-NN: class of {comparison.labelled} labelled images, each by"
            " its nearest others."
        )
    return " ".join(parts)


def _picture(comparison: Comparison) -> Section | None:
    if not comparison.exhibits:
        return None
    names = ", ".join(exhibit.name for exhibit in comparison.exhibits)
    picture = Picture(
        png(pca_figure(comparison.exhibits, comparison.columns)),
        alt=f"Photos and the patch tokens of each model as colours: {names}",
        caption="Three main components of the patch tokens as colours. The colours are those of"
        " the first model, for all columns and photos: equal colours mean equal features. On the"
        " right what the first model says on average over its views.",
    )
    return Section("Before and after", (*_sliders(comparison), picture))


def _sliders(comparison: Comparison) -> list[Element]:
    """Lay the tokens of the second column over those of the first, photo by photo."""
    if len(comparison.columns) < 2:
        return []
    names = (comparison.columns[0].title, comparison.columns[1].title)
    items = []
    for exhibit in comparison.exhibits[:TABS]:
        before, after = (cells_png(c, exhibit.aspect) for c in exhibit.colours[:2])
        slider = Slider(before, after, names, alt=f"Patch tokens of {exhibit.name} as colours")
        items.append((PurePosixPath(exhibit.name).name, (slider,)))
    return [Tabs("Photo", tuple(items))]


def _norms(comparison: Comparison) -> Section | None:
    rule = comparison.rule
    if rule is None:
        return None
    known = [row for row in comparison.rows if row.shares is not None]
    header = ("block", "cutoff", *(row.model for row in known))
    rows = tuple(
        (
            str(block + 1),
            f"{tail.cutoff:.2f} {TIMES}",
            *(percent(row.shares[i], 2) for row in known if row.shares is not None),
        )
        for i, (block, tail) in enumerate(zip(rule.blocks, rule.tails, strict=True))
    )
    elements: list[Element] = [
        Picture(
            norm_figure(comparison, rule),
            alt="Tokens beyond the cutoff, and the largest norm, by block and model.",
            caption=f"Left: tokens beyond the cutoffs of '{rule.model}', in the blocks where it has"
            " artifacts. Right: the largest norm of every block.",
        ),
        Table(header, rows, caption="Share of tokens beyond the cutoff, block by block."),
    ]
    registers = [row for row in known if row.register_norms]
    if registers:
        text = "; ".join(
            f"{row.model}: {', '.join(f'{norm:.1f} {TIMES}' for norm in row.register_norms)}"
            for row in registers
        )
        elements.append(
            Paragraph(
                f"Mean norms of the registers at block {rule.peak + 1}, in medians of the patches:"
                f" {text}. Registers that took over the work of artifacts are long."
            )
        )
    return Section(f"Where '{rule.model}' has artifact tokens", tuple(elements))


def norm_figure(comparison: Comparison, rule: NormRule) -> Figure:
    """Draw shares beyond the cutoffs, and the largest norms, one line per model."""
    figure, (left, right) = chart(12.5, 3.6, 2)
    colours = series_colours(len(comparison.rows))
    for number, (row, diagnosis) in enumerate(
        zip(comparison.rows, comparison.diagnoses, strict=True)
    ):
        marker, name = MARKERS[number % len(MARKERS)], shortened(row.model)
        look = {"marker": marker, "markersize": 5, "linewidth": 1.6, "color": colours[number]}
        if row.shares is not None:
            shares = [100 * share for share in row.shares]
            left.plot([b + 1 for b in rule.blocks], shares, label=name, **look)
        if diagnosis is not None and len(diagnosis.blocks) == rule.depth:
            right.plot(
                range(1, rule.depth + 1), [block.largest for block in diagnosis.blocks], **look
            )
    left.set_ylim(bottom=0)
    dress(left, f"{rule.side}-norm tokens, blocks {span(rule.blocks)}", x="block", y="% of tokens")
    dress(right, "largest norm", x="block", y=f"{TIMES} median of the image")
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
    yardstick = comparison.yardstick
    few = (
        f"At this grid one forward pass of the first model is at {yardstick.raw:.4f} and the"
        f" average of {FEW} views at {yardstick.few:.4f}."
    )
    paragraphs = (
        "Reference. The first model sees shifted and mirrored views of a picture; their tokens are"
        " brought back to their places and averaged. What stays with the place instead of the"
        f" content averages out. {few} It is no ground truth: it says how far a model is from a"
        " denoised first model, not how good its features are.",
        "Gap closed. (raw - model) / (raw - ten views), each a distance to the reference: 0 % is"
        " the first model, 100 % what ten forward passes would give, above is better than that.",
        "Artifact tokens. All models are counted with the same cutoffs, block by block, before the"
        " final norm. The verdict is each model's own.",
        "Cost. One picture at a time, models taking turns; the median of the rounds, and the median"
        " of the ratio to the first model in the same round.",
    )
    return Section("How it was measured", tuple(Paragraph(text) for text in paragraphs))


def _subtitle(comparison: Comparison) -> str:
    height, width = comparison.size
    count = len(comparison.images)
    return (
        f"{count} image{'s' * (count != 1)} at {height} {TIMES} {width} px. Made by clearvit"
        f" {__version__}; the same numbers are in compare.json beside this page."
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
