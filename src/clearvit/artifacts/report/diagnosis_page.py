"""The report of a diagnosis: one HTML file for people, one JSON file for programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from clearvit import __version__
from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.equivariance import Equivariance
from clearvit.artifacts.outliers import SIDES
from clearvit.artifacts.report.attention_section import attention_section
from clearvit.artifacts.report.evidence import experiments_section
from clearvit.artifacts.report.figures import TIMES, draw_by_block, draw_norms, draw_readings
from clearvit.artifacts.report.glossary import glossary_section
from clearvit.artifacts.report.maps import draw_examples, draw_positions, draw_registers
from clearvit.artifacts.report.numbers import numbers_section
from clearvit.artifacts.report.series import HEADER, compare_figure, compare_table
from clearvit.artifacts.verdict import MEANING, TITLES, Finding
from clearvit.errors import ModelError
from clearvit.files import replace_json
from clearvit.report.elements import (
    Command,
    Element,
    Facts,
    ImageElement,
    Notice,
    Paragraph,
    Section,
    Table,
)
from clearvit.report.page import replace_nonfinite, write_page


def write_report(diagnoses: Sequence[Diagnosis], path: Path) -> Path:
    """Write the report of one model, or of several side by side.

    Args:
        diagnoses: What was found, one per model, in the order to show.
        path: A directory, for `report.html` and `report.json`, or a file that ends in .html; its
            JSON file is then called alike.

    Returns:
        The HTML file.
    """
    if not diagnoses:
        raise ModelError("there is nothing to report; give at least one diagnosis.")
    target = report_file(path)
    replace_json(target.with_suffix(".json"), report_json(diagnoses))
    title, sections = report_sections(diagnoses)
    return write_page(target, title, sections, subtitle=_subtitle(diagnoses))


def report_file(path: Path) -> Path:
    """Name the page of a report: the path itself if it ends in .html, else a file in it."""
    is_page = path.suffix.lower() in (".html", ".htm") and not path.is_dir()
    return path if is_page else path / "report.html"


def report_json(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Give all numbers of a report; unknown ones are None."""
    return {"diagnoses": [replace_nonfinite(diagnosis.to_json()) for diagnosis in diagnoses]}


def report_sections(diagnoses: Sequence[Diagnosis]) -> tuple[str, list[Section]]:
    """Give title and sections of the page."""
    if len(diagnoses) == 1:
        (only,) = diagnoses
        return f"Diagnosis of {only.model}", [*_model_sections(only), glossary_section()]
    groups = [Section(one.model, tuple(_model_sections(one))) for one in diagnoses]
    return (
        f"Diagnosis of {len(diagnoses)} models",
        [_comparison(diagnoses), *groups, glossary_section()],
    )


def _model_sections(diagnosis: Diagnosis) -> list[Section]:
    sections = [
        _verdict(diagnosis),
        _norms(diagnosis),
        _where(diagnosis),
        _registers(diagnosis),
        attention_section(diagnosis),
        _equivariance(diagnosis.equivariance),
        experiments_section(diagnosis.experiments),
        numbers_section(diagnosis),
    ]
    return [section for section in sections if section is not None]


def _comparison(diagnoses: Sequence[Diagnosis]) -> Section:
    rows = [row.cells() for row in compare_table(diagnoses)]
    known = [i for i in range(len(HEADER)) if any(row[i] is not None for row in rows)]
    table = Table(
        tuple(HEADER[i] for i in known),
        tuple(tuple(row[i] for i in known) for row in rows),
        caption="Models in the order given. Onset and peak are blocks, counted from 0; cutoff,"
        " largest and register norms are multiples of the median norm of the patches. Shifted: how"
        " much features change with a shift, as a fraction of the distance of different contents.",
    )
    element = ImageElement(
        compare_figure(diagnoses),
        alt="Norms and flagged tokens by block, one line per model.",
        caption="Norms along the blocks of each model. Artifact tokens lift the largest norm and"
        " the 99.9 % quantile while the median goes on as before; where these fall again in the"
        " last block, a look at the output alone misses them.",
    )
    return Section("Comparison", (table, element))


def _verdict(diagnosis: Diagnosis) -> Section:
    finding = diagnosis.findings[0] if diagnosis.findings else None
    title, tone = TITLES[diagnosis.verdict]
    text = MEANING[diagnosis.verdict]
    if finding is None:
        text += " In no two neighboring blocks do patch norms form a second mode, on either side."
    else:
        text += f" {finding.evidence}"
    inside: list[Element] = [Facts(_facts(diagnosis, finding))]
    for other in diagnosis.findings[1:]:
        sure = f"confidence {100 * other.confidence:.0f} %"
        inside.append(Paragraph(f"Also: {other.title} ({sure}). {other.evidence}"))
    inside.append(Command(diagnosis.next_command, "Next:"))
    return Section("Verdict", (Notice(title, text, tone, tuple(inside)),))


def _facts(diagnosis: Diagnosis, finding: Finding | None) -> tuple[tuple[str, str], ...]:
    depth, block = len(diagnosis.blocks), diagnosis.blocks[diagnosis.peak]
    facts = [("images", str(len(diagnosis.observations.names)))]
    if finding is None:
        return (*facts, ("largest norm", _times(max(b.largest for b in diagnosis.blocks))))
    if finding.kind != "non-equivariant":
        facts.append(("tokens concerned", f"{100 * finding.fraction:.2f} %"))
    if finding.interval[1] > finding.interval[0]:
        low, high = (100 * end for end in finding.interval)
        facts.append(("95 % interval", f"{low:.2f}\N{EN DASH}{high:.2f} %"))
    if finding.onset is not None:
        facts.append(("onset at block", f"{finding.onset} of 0..{depth - 1}"))
        facts.append(("strongest at block", f"{diagnosis.peak} of 0..{depth - 1}"))
    if finding.cutoff is not None:
        facts.append(("cutoff there", _times(finding.cutoff)))
        high_side = finding.kind == "high-norm"
        name, value = ("largest", block.largest) if high_side else ("smallest", block.smallest)
        facts.append((f"{name} norm there", _times(value)))
    return (*facts, ("confidence", f"{100 * finding.confidence:.0f} %"))


def _norms(diagnosis: Diagnosis) -> Section:
    last = diagnosis.blocks[-1]
    seen_last = any(last.outliers(side) for side in SIDES)
    found = any(finding.cutoff is not None for finding in diagnosis.findings)
    missed = " Here the output alone would have shown nothing." if found and not seen_last else ""
    elements: list[Element] = [
        ImageElement(
            draw_norms(diagnosis),
            alt=f"Heat map of token norms by block. {_in_words(diagnosis)}",
            caption="Each column is the histogram of one block over all images; color is a"
            " logarithmic fraction of tokens, so single tokens show. Healthy norms are one band."
            " Artifacts are a second band, set off by the orange cutoff; the number is the"
            " percentage of tokens beyond it.",
        ),
        ImageElement(
            draw_readings(diagnosis),
            alt="Histograms of token norms at the block shown, at the last block and after the"
            f" final norm. {_in_words(diagnosis)}",
            caption="The same images, read at three points. After the final norm all tokens have"
            f" about equal norms, so norms should be read before it.{missed}",
        ),
    ]
    if any(block.outliers(side) for block in diagnosis.blocks for side in SIDES):
        elements.append(
            ImageElement(
                draw_by_block(diagnosis),
                alt="Percentage of flagged tokens by block, and of class attention on them.",
                caption="Left: how many tokens are flagged, block by block. Right: how much of"
                " what the class token gives to patches goes to them; above the dashed line, they"
                " get more than their number.",
            )
        )
    return Section("Norms, block by block", tuple(elements))


def _in_words(diagnosis: Diagnosis) -> str:
    flagged = [b.index for b in diagnosis.blocks if b.high or b.low]
    if not flagged:
        return "One band in every block; no cutoff."
    return f"A second band is cut off at block {', '.join(map(str, flagged))}."


def _where(diagnosis: Diagnosis) -> Section:
    elements: list[Element] = []
    flagged = bool(diagnosis.outlier_mask().any())
    chosen = "most flagged tokens" if flagged else "the widest spread of norms; none is flagged"
    figure = draw_examples(diagnosis)
    if figure is not None:
        names = [example.name for example in diagnosis.examples]
        elements.append(
            ImageElement(
                figure,
                alt="Photos with flagged cells outlined, their norms, class attention and PCA: "
                + ", ".join(PurePosixPath(name).name for name in names),
                caption=f"The images with {chosen}. Artifacts are single cells, often on plain"
                " background. Colors of the PCA are shared: equal colors mean equal features.",
                command=_look_again(diagnosis, names),
            )
        )
    elements.append(
        ImageElement(
            draw_positions(diagnosis),
            alt="Maps of the grid: fraction of images flagged, mean norm, shared component.",
            caption=_positions_caption(diagnosis),
        )
    )
    if diagnosis.structure is not None:
        elements.append(Paragraph(f"Of the example images: {diagnosis.structure}", faint=True))
    return Section("Where they sit" if flagged else "On the grid", tuple(elements))


def _look_again(diagnosis: Diagnosis, names: Sequence[str]) -> str:
    """Name the command that draws these images, from where the diagnosis was run."""
    folder, (height, width) = diagnosis.folder, diagnosis.size
    files = [str(PurePath(folder) / name) for name in names] if Path(folder).is_dir() else names
    size = str(height) if height == width else f"{height}x{width}"
    options = ["--size", size, "--layers", f"{diagnosis.peak},-1"]
    return shlex.join(["clearvit", "look", diagnosis.model, *files, *options])


def _positions_caption(diagnosis: Diagnosis) -> str:
    block = diagnosis.blocks[diagnosis.peak]
    if block.border is None:
        flagged = "No token is flagged at this block."
    else:
        flagged = (
            f"Positions on the border are flagged {block.border:.1f} {TIMES} as often as positions"
            f" inside; the position flagged most often is so in {100 * block.recurring:.0f} % of"
            " the images."
        )
    return (
        f"{flagged} Stripes or single bright cells mean that the position decides, not the"
        " image. On the right, what differs from the neighbors in the same way in all images."
    )


def _registers(diagnosis: Diagnosis) -> Section | None:
    figure = draw_registers(diagnosis)
    if figure is None:
        return None
    norms = diagnosis.blocks[-1].register_norms
    table = Table(
        ("register", *(str(i + 1) for i in range(len(norms)))),
        ((f"norm, {TIMES} median of the patches", *(f"{norm:.2f}" for norm in norms)),),
        caption="Mean norms at the last block.",
    )
    element = ImageElement(
        figure,
        alt="Attention of each register to the patches, mean over images and on photos.",
        caption="Where each register looks in the last block, mean over heads. Registers that do"
        " the work of artifacts have high norms and look broadly, like the class token.",
    )
    return Section("Registers", (table, element))


def _equivariance(moved: Equivariance | None) -> Section | None:
    if moved is None:
        return None
    rows = []
    for name, values in (
        (
            f"same content, shifted by {moved.patches} patch{'es' * (moved.patches != 1)}",
            moved.shift,
        ),
        ("same content, mirrored", moved.flip),
        ("different contents of one image", moved.different),
    ):
        mean = sum(values) / len(values)
        rows.append((name, f"{mean:.3f}", f"{min(values):.3f}", f"{max(values):.3f}"))
    verdict = "noticeable" if moved.matters else "small"
    text = (
        f"Shifted by whole patches, the same content changes its feature by"
        f" {100 * moved.ratio:.0f} % of the distance between different contents, on average over"
        f" {len(moved.ratios)} image{'s' * (len(moved.ratios) != 1)}. This is {verdict}: the line"
        f" for this size is drawn at {100 * moved.level:.0f} %. What does not move with the"
        " image can be averaged out over shifted views."
    )
    table = Table(
        ("cosine distance of final patch tokens", "mean", "smallest", "largest"), tuple(rows)
    )
    return Section("Do features move with the image?", (Paragraph(text), table))


def _subtitle(diagnoses: Sequence[Diagnosis]) -> str:
    seen = {len(diagnosis.observations.names) for diagnosis in diagnoses}
    sizes = {f"{d.size[0]} {TIMES} {d.size[1]}" for d in diagnoses}
    images = " or ".join(map(str, sorted(seen)))
    return (
        f"{images} image{'s' * (images != '1')} at {' and '.join(sorted(sizes))} px; norms are read"
        f" before the final norm. Made by clearvit {__version__}; the same numbers are in"
        " report.json."
    )


def _times(value: float) -> str:
    return f"{value:.2f} {TIMES}"
