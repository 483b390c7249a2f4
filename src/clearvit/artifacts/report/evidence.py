"""The paper's experiments as a section of the report, with the published numbers beside."""

from __future__ import annotations

import math

from clearvit.artifacts.experiments import Experiments, Published
from clearvit.artifacts.neighbors import Contrast
from clearvit.artifacts.report.figures import draw_redundancy
from clearvit.artifacts.token_probes import Probe, Row
from clearvit.report.elements import Details, Element, ImageElement, Paragraph, Section, Table

TITLES = {
    "position": "Where the token sits",
    "pixels": "What its patch looks like",
    "class": "What the image shows",
}
UNCHECKED = " Its numbers are from secondary notes, not compared with its text."


def experiments_section(experiments: Experiments | None) -> Section | None:
    """Show what flagged tokens know and where they sit; None if it was not asked."""
    if experiments is None:
        return None
    published = {one.name: one for one in experiments.published}
    probes = [experiments.position, experiments.pixels]
    probes += [] if experiments.classes is None else [experiments.classes]
    elements: list[Element] = [
        Paragraph(
            "The experiments of Vision Transformers Need Registers, at block"
            f" {experiments.block} (from 0) on {experiments.images} images, beside what the paper"
            " found for DINOv2 ViT-g/14. Compare kinds of token within a table, not across tables."
        ),
        _redundancy(experiments.redundancy, published.get("redundancy")),
    ]
    elements += [_probe(probe, published.get(probe.name)) for probe in probes]
    if experiments.classes is None:
        elements.append(
            Paragraph(
                "The class probe needs labels: give a folder with one subfolder per class.",
                faint=True,
            )
        )
    protocols = tuple(Paragraph(f"{probe.name}: {probe.protocol}") for probe in probes)
    how = Details("How the probes were made", (*protocols, Paragraph(experiments.differences)))
    return Section("What flagged tokens know", (*elements, how))


def _redundancy(contrast: Contrast, published: Published | None) -> Section:
    claim = [Paragraph(f"Paper: {one.finding}", faint=True) for one in (published,) if one]
    if not contrast.conclusive:
        return Section("Redundant patches", (Paragraph(f"Not conclusive: {contrast.note}"), *claim))
    low, high = contrast.interval
    text = (
        f"Flagged positions are {_compared(contrast)} their neighbors right after patch embedding:"
        f" mean cosine {contrast.outlier:.3f} against {contrast.normal:.3f} at normal positions,"
        f" difference {contrast.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}), AUROC"
        f" {contrast.auroc:.2f}. {contrast.note}"
    )
    figure = ImageElement(
        draw_redundancy(contrast),
        alt=f"Two densities of neighbor similarity; AUROC {contrast.auroc:.2f}.",
        caption="If the orange density lies to the right of the blue one, artifacts sit on"
        " patches that repeat what their neighbors say. AUROC 0.5 means no difference.",
    )
    return Section("Redundant patches", (Paragraph(text), figure, *claim))


def _compared(contrast: Contrast) -> str:
    low, high = contrast.interval
    if low > 0:
        return "more like"
    return "less like" if high < 0 else "neither more nor less like"


def _probe(probe: Probe, published: Published | None) -> Section:
    elements: list[Element] = []
    if not probe.conclusive:
        elements.append(Paragraph(f"Not conclusive: {probe.note}"))
    beside = published if published is not None and len(published.metrics) <= 3 else None
    if probe.rows:
        elements.append(_table(probe, beside))
    elif beside is not None:
        elements.append(_paper_table(beside))
    if published is not None and published is not beside:
        elements.append(Details("The paper's numbers", (_paper_table(published),)))
    if published is not None:
        remark = "" if published.checked or not published.rows else UNCHECKED
        elements.append(Paragraph(f"Paper: {published.finding}{remark}", faint=True))
    return Section(TITLES.get(probe.name, probe.name), tuple(elements))


def _table(probe: Probe, published: Published | None) -> Table:
    """Put our scores and the paper's side by side, one row per kind of token."""
    theirs = {row.kind: row for row in published.rows} if published is not None else {}
    metrics = published.metrics if published is not None else ()
    rows = []
    for row in probe.rows:
        other = theirs.get(row.kind)
        paper = _scores(other) if other is not None else [None] * len(metrics)
        rows.append((row.kind, *_scores(row), row.count, *paper))
    header = ("token", *probe.metrics, "tokens scored", *(f"paper: {name}" for name in metrics))
    return Table(header, tuple(rows), caption="" if not probe.conclusive else probe.note)


def _paper_table(published: Published) -> Table:
    return Table(
        ("token", *published.metrics),
        tuple((row.kind, *_scores(row)) for row in published.rows),
        caption="DINOv2 ViT-g/14, as published.",
    )


def _scores(row: Row) -> list[str | None]:
    """Write scores with their spread over the seeds, where it is known."""
    texts: list[str | None] = []
    for mean, sd in zip(row.means, row.sds, strict=True):
        spread = f" ± {sd:.1f}" if math.isfinite(sd) else ""
        digits = 2 if abs(mean) < 10 else 1
        texts.append(f"{mean:.{digits}f}{spread}" if math.isfinite(mean) else None)
    return texts
