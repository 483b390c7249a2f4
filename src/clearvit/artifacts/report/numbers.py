"""All numbers of a diagnosis as tables, and the settings they were made with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clearvit import __version__
from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.norms import QUANTILES, BlockReport
from clearvit.artifacts.outliers import Outliers
from clearvit.artifacts.report.figures import TIMES
from clearvit.report.elements import Cell, Command, Details, Element, Section, Table

OUTLIER_HEADER = ("side", "cutoff", "flagged", "95 % interval", "tokens", "explained", "confidence")
SPREAD_HEADER = ("largest", "smallest", "border", "recurring", "class attention")


def numbers_section(diagnosis: Diagnosis) -> Section:
    """List every block, the settings and the files that could not be read, all folded."""
    seen = diagnosis.observations
    levels = [f"{100 * level:g} %" for level in QUANTILES]
    quantiles = Table(
        ("block", "median norm", *levels),
        tuple(
            (b.index, f"{b.median:.4g}", *(f"{q:.2f}" for q in b.quantiles))
            for b in diagnosis.blocks
        ),
        caption="Quantiles of norm / median of the image.",
    )
    elements: list[Element] = [
        Details("Every block", (_block_table(diagnosis.blocks), quantiles)),
        Details("Settings", (_settings(diagnosis), Command(_again(diagnosis), "Once more:"))),
    ]
    if seen.skipped:
        rows = tuple((bad.name, bad.reason) for bad in seen.skipped)
        table = Table(("file", "reason"), rows)
        elements.append(Details(f"Skipped files ({len(seen.skipped)})", (table,)))
    return Section("All numbers", tuple(elements))


def _block_table(blocks: Sequence[BlockReport]) -> Table:
    registers = any(block.register_norms for block in blocks)
    rows: list[tuple[Cell, ...]] = []
    for block in blocks:
        found: list[Outliers | None] = [
            group for group in (block.high, block.low) if group is not None
        ]
        for group in found or [None]:
            norms = (", ".join(f"{n:.1f}" for n in block.register_norms),) if registers else ()
            rows.append((block.index, *_outlier_cells(group), *_spread_cells(block), *norms))
    header = ("block", *OUTLIER_HEADER, *SPREAD_HEADER)
    return Table(
        (*header, "register norms") if registers else header,
        tuple(rows),
        caption=f"Norms are multiples ({TIMES}) of the median of the image. Explained: tokens that"
        " a single mode can put there, at most. Border: flag rate on the border ring over that"
        " inside. Recurring: largest fraction of images in which one position is flagged.",
    )


def _outlier_cells(group: Outliers | None) -> tuple[Cell, ...]:
    if group is None:
        return (None,) * len(OUTLIER_HEADER)
    low, high = (f"{100 * end:.2f}" for end in group.interval)
    return (
        group.side,
        f"{group.cutoff:.2f}",
        f"{100 * group.fraction:.2f} %",
        f"{low} to {high} %",
        group.count,
        f"{group.expected:.1f}",
        f"{100 * group.confidence:.0f} %",
    )


def _spread_cells(block: BlockReport) -> tuple[Cell, ...]:
    return (
        f"{block.largest:.2f}",
        f"{block.smallest:.2f}",
        None if block.border is None else f"{block.border:.1f}",
        _percent(block.recurring),
        _percent(block.attention),
    )


def _settings(diagnosis: Diagnosis) -> Table:
    seen = diagnosis.observations
    (height, width), (rows, columns) = diagnosis.size, seen.grid
    moved, tried = diagnosis.equivariance, diagnosis.experiments
    return Table(
        ("setting", "value"),
        (
            ("model", diagnosis.model),
            ("images", f"{len(seen.names)} read, {len(seen.skipped)} skipped"),
            ("size", f"{height} {TIMES} {width} px, {rows} {TIMES} {columns} patches"),
            ("rule for resizing position embeddings", diagnosis.positions),
            ("images shifted", "none" if moved is None else f"{len(moved.shift)}"),
            ("images probed", "none" if tried is None else f"{tried.images}"),
            ("clearvit", __version__),
        ),
    )


def _again(diagnosis: Diagnosis) -> str:
    height, width = diagnosis.size
    parts = ["clearvit", "diagnose", diagnosis.model, "IMAGES", "--out", "report/"]
    parts += ["--size", f"{height}x{width}", "--limit", str(len(diagnosis.observations.names))]
    parts += ["--positions", diagnosis.positions]
    return shlex.join(parts)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"
