"""`clearvit report`: the pages of finished runs, as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.arguments import Output
from clearvit.cli.console import note
from clearvit.cli.generate import command
from clearvit.options import Options, option


@dataclass(frozen=True)
class ReportConfig(Options):
    """What the combined page looks like."""

    out: Path = option(Path("report.html"), "The HTML file to write.", panel="Output", short="-o")
    title: str = option("Report", "Heading of the page.", panel="Output")


@command("report")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="Directories that other commands wrote, or their pages.",
            show_default=False,
        ),
    ],
    config: ReportConfig,
    output: Output,
) -> None:
    """Combine the pages of finished runs into one HTML file that needs nothing else.

    Example: `clearvit report diagnosis/ cured/ compare/ boxes/ --out report.html`
    """
    from clearvit.report.combine import combine_pages, find_pages

    pages = [page for page in find_pages(runs) if page.resolve() != config.out.resolve()]
    path = combine_pages(pages, config.out, config.title)
    summary = {"page": str(path), "chapters": [str(page) for page in pages]}
    output.show(summary, path)
    note(f"{len(pages)} chapter{'s' * (len(pages) != 1)}; open it in any browser")
