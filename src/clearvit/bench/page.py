"""The page of a benchmark: the table, and which patches were kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clearvit.bench.table import HEADER, Bench
from clearvit.report.elements import Picture, Section, Table
from clearvit.report.page import write_page


def write_bench_page(path: Path, bench: Bench, pictures: Sequence[Path] = ()) -> Path:
    """Write a page with the table of a benchmark.

    Args:
        path: The .html file.
        bench: What was measured.
        pictures: PNG files of `draw_kept`.
    """
    sections = [Section("How fast?", (Table(HEADER, tuple(bench.cells()), bench.legend()),))]
    if pictures:
        drawn = tuple(
            Picture(
                picture.read_bytes(),
                alt=f"Patches kept at each stage: {picture.stem}",
                caption="Bright patches are still there when the named block begins.",
            )
            for picture in pictures
        )
        sections.append(Section("What is kept?", drawn))
    return write_page(path, f"Speed of {bench.rows[0].model}", sections)
