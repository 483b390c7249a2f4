"""`clearvit report`: the pages of finished runs, as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import errors


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="Directories that other commands wrote, or their pages.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "What the tokens say",
    as_json: options.Json = False,
) -> None:
    """Bind the pages of finished runs into one HTML file that needs nothing else.

    Example: `clearvit report diagnosis/ cured/ compare/ boxes/ --out report.html`
    """
    from clearvit.report.book import bind, find_pages

    pages = [page for page in find_pages(runs) if page.resolve() != out.resolve()]
    path = bind(pages, out, title)
    print(json.dumps({"page": str(path), "chapters": [str(p) for p in pages]}) if as_json else path)
    errors.print(f"{len(pages)} chapter{'s' * (len(pages) != 1)}; open it in any browser")
