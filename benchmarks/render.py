"""Make the pages of docs/results from the JSON files of results, and what else shows their numbers.

    python benchmarks/render.py             # all pages, the list of them, README's results
    python benchmarks/render.py finer       # one page
    python benchmarks/render.py --check     # writes nothing; exit code 1 where a page differs

A page has a module in pages/, whose function `page()` reads results and gives Markdown. Comments
that no script can write go to results/NAME.notes.md, which is put at the end of the page, or in
place of a line `<!-- notes -->`. Measures nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from clearvit.files import written_whole
from data import RESULTS
from evidence import HERE, results_folder

NOTES = "<!-- notes -->"


def pages_folder() -> Path:
    """docs/results, or a folder beside the results of a trial run."""
    return results_folder() / "pages" if os.environ.get("CLEARVIT_RESULTS") else RESULTS


def page_names() -> list[str]:
    """Names of all pages that have results, sorted."""
    names = sorted(path.stem for path in (HERE / "pages").glob("[!_]*.py"))
    return [name for name in names if render_text(name)]


def render_text(name: str) -> str:
    """Give the Markdown of a page."""
    text: str = importlib.import_module(f"pages.{name}").page()
    if not text:  # nothing has been measured
        return ""
    notes = results_folder() / f"{name}.notes.md"
    comments = notes.read_text("utf-8").strip() if notes.exists() else ""
    if NOTES in text:
        return text.replace(NOTES, comments)
    return f"{text.rstrip()}\n" + (f"\n{comments}\n" if comments else "")


def render(name: str) -> Path:
    """Write a page; scripts call this when they have measured something."""
    path = pages_folder() / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as part:
        part.write_text(render_text(name), "utf-8")
    return path


def differing(names: list[str]) -> list[str]:
    """Pages that are not what their results give."""
    return [name for name in names if _stored(name) != render_text(name)]


def _stored(name: str) -> str | None:
    path = pages_folder() / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of pages; all by default")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    names = options.names or page_names()
    if options.check:
        wrong = differing(names)
        for name in wrong:
            print(f"docs/results/{name}.md is not what its results give; run benchmarks/render.py")
        return bool(wrong)
    for name in names:
        print(render(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
