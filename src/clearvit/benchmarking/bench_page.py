"""The page of a benchmark: the table, and which patches were kept."""

from __future__ import annotations

from pathlib import Path

from clearvit.benchmarking.bench_table import Bench
from clearvit.pruning.kept_figure import CAPTION
from clearvit.report.elements import ImageElement, Section, Table
from clearvit.report.page import write_page


def write_bench_page(path: Path, bench: Bench) -> Path:
    """Write a page with the table of a benchmark.

    Args:
        path: The .html file.
        bench: What was measured.
    """
    words = " ".join([bench.legend(), *bench.warnings()])
    sections = [Section("How fast?", (Table(bench.header(), tuple(bench.cells()), words),))]
    if bench.drawn:
        drawn = tuple(
            ImageElement(
                image.read_bytes(),
                alt=f"Patches kept at each stage: {image.stem}",
                caption=CAPTION,
            )
            for image in map(Path, bench.drawn)
        )
        sections.append(Section("What is kept?", drawn))
    return write_page(path, f"Speed of {bench.rows[0].model}", sections)
