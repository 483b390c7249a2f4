"""Make the pages of docs/results from the JSON files of results, and what else shows their numbers.

    python benchmarks/render.py             # all pages, the list of them, README's results
    python benchmarks/render.py finer       # one page
    python benchmarks/render.py --check     # writes nothing; exit code 1 where a page differs

A page has a module in pages/, whose function `page()` reads results and gives Markdown, or is a
result of tables (tables.py). Comments that no script can write go to results/NAME.notes.md, which
is put behind that, or in place of a line `<!-- notes -->`. How each result was measured comes last.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.files import written_whole
from data import RESULTS
from evidence import (
    HERE,
    read_result,
    read_runs,
    results_folder,
    seen_results,
)

NOTES = "<!-- notes -->"
BY_HAND = {"hardening": "Hostile tries, and the tests that keep them mended"}  # a list of tests
INDEX_HEAD = """# Results

Every page names its data, its counts and the machine. All of them were measured on two CPU cores
without a GPU; ratios carry over to other machines better than times.

| page | made by | on |
|---|---|---|"""


def pages_folder() -> Path:
    """docs/results, or a folder beside the results of a trial run."""
    return results_folder() / "pages" if os.environ.get("CLEARVIT_RESULTS") else RESULTS


def images_folder() -> Path:
    """docs/images, or a folder beside the results of a trial run."""
    return pages_folder().parent / "images"


@dataclass(frozen=True)
class Page:
    """A page as it should be."""

    text: str  # "" when nothing has been measured
    used: tuple[str, ...]  # names of results

    @property
    def title(self) -> str:
        """First line, without its mark."""
        return self.text.split("\n", 1)[0].removeprefix("# ")


def page_names() -> list[str]:
    """Names of all pages that are known, sorted."""
    names = {path.stem for path in (HERE / "pages").glob("[!_]*.py")}
    names |= {path.stem for path in results_folder().glob("*.json") if _has_parts(path.stem)}
    return sorted(names)


def make_pages(names: Iterable[str] | None = None) -> dict[str, Page]:
    """Make the pages of these names, or all, that have results."""
    made = {name: make_page(name) for name in names or page_names()}
    return {name: page for name, page in made.items() if page.text}


def make_page(name: str) -> Page:
    """Make a page: what its module gives, its notes, and how it was measured."""
    with seen_results() as seen:
        text = _body(name)
    used = tuple(sorted(seen))
    if not text:
        return Page("", used)
    notes = results_folder() / f"{name}.notes.md"
    comments = notes.read_text("utf-8").strip() if notes.exists() else ""
    if NOTES in text:
        text = text.replace(NOTES, comments)
    elif comments:
        text = f"{text.rstrip()}\n\n{comments}\n"
    return Page(f"{text.rstrip()}\n\n{runs_table(used)}", used)


def _body(name: str) -> str:
    if not (HERE / "pages" / f"{name}.py").exists():
        return parts_text(read_result(name))
    module = importlib.import_module(f"pages.{name}")
    with seen_results() as used:
        made = _page_of(module)
    if made is None and used and not os.environ.get("CLEARVIT_RESULTS"):
        made = module.page()  # says what is wrong; in a trial some of its results may be missing
    return made or "" if used else ""


def _page_of(module: Any) -> str | None:
    """What a module gives; None where results that it needs are missing."""
    try:
        made: str = module.page()
    except (LookupError, StopIteration, ValueError, TypeError):
        return None
    return made


def _has_parts(name: str) -> bool:
    return "parts" in read_result(name)


def parts_text(content: dict[str, Any]) -> str:
    """Markdown of a result that is tables of text, see tables.py."""
    blocks = [f"# {content['title']}"]
    for part in content["parts"]:
        if "rows" in part:
            head, *rows = [f"| {' | '.join(row)} |" for row in (part["columns"], *part["rows"])]
            rule = "|" + "---|" * len(part["columns"])
            blocks.append("\n".join([head, rule, *rows]))
        else:
            blocks.append(part.get("heading") or part["text"])
    return "\n\n".join(blocks) + "\n"


def runs_table(names: Iterable[str]) -> str:
    """How the results of a page were measured, from the record that each of them carries."""
    lines = [
        "## How this was measured",
        "",
        "| result | last written | commit | command | machine | load | data |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        runs = read_runs(name)
        last = runs[-1] if runs else {}
        machine = last.get("machine", {})
        cells = [
            f"{name}.json" + (f", {len(runs)} runs" if len(runs) > 1 else ""),
            str(last.get("written") or _date_of(read_result(name))),
            str(last.get("commit", "not recorded")),
            f"`{last['command']}`" if last.get("command") else "see above",
            _join(machine.get("processor"), _count(machine, "cores"), _count(machine, "threads")),
            " to ".join(str(one) for one in machine.get("load", [])) or "-",
            _join(*(f"{one} {mark}" for one, mark in last.get("data", {}).items())),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _date_of(content: dict[str, Any]) -> str:
    parts = [content, *(one for one in content.values() if isinstance(one, dict))]
    dates = [one["date"] for one in parts if "date" in one]
    return max(dates, default="not recorded")


def _count(machine: dict[str, Any], key: str) -> str | None:
    return f"{machine[key]} {key}" if machine.get(key) else None


def _join(*texts: str | None) -> str:
    return ", ".join(text for text in texts if text) or "-"


def render(name: str) -> Path:
    """Write a page; scripts call this when they have measured something."""
    return _write(name, make_page(name).text)


def _write(name: str, text: str) -> Path:
    path = pages_folder() / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as part:
        part.write_text(text, "utf-8")
    return path


def find_differences(pages: Mapping[str, Page], *, documents: bool = True) -> list[str]:
    """Files that are not what results give: pages, the list of them, and documents with blocks."""
    import blocks

    wrong = [
        f"docs/results/{name}.md" for name, page in pages.items() if _stored(name) != page.text
    ]
    if not documents:
        return wrong
    if _stored("index") != index_text(pages):
        wrong.append("docs/results/index.md")
    return wrong + [file for file in blocks.BLOCKS if blocks.blocks_differ(file)]


def _stored(name: str) -> str | None:
    path = pages_folder() / f"{name}.md"
    return path.read_text("utf-8") if path.exists() else None


def index_text(pages: Mapping[str, Page]) -> str:
    """List the pages, with the scripts behind them."""
    lines = [INDEX_HEAD]
    for name, page in pages.items():
        runs = [run for one in page.used for run in read_runs(one)]
        commands = [run["command"] for run in runs if run.get("command")]
        dates = [run["written"][:10] for run in runs]
        dates += [_date_of(read_result(one)) for one in page.used]
        date = max((one for one in dates if one[:1].isdigit()), default="-")
        lines.append(f"| [{page.title}]({name}.md) | {_script(commands, page.text)} | {date} |")
    lines += [f"| [{title}]({name}.md) | written by hand | |" for name, title in BY_HAND.items()]
    return "\n".join(lines) + "\n"


def _script(commands: list[str], text: str) -> str:
    found = re.findall(r"python (benchmarks/\w+\.py)", " ".join(commands) or text)
    return ", ".join(f"`{one}`" for one in dict.fromkeys(found)) or "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of pages; all by default")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    pages, everything = make_pages(options.names), not options.names
    if options.check:
        wrong = find_differences(pages, documents=everything)
        for path in wrong:
            print(f"{path} is not what its results give; run `python benchmarks/render.py`")
        return bool(wrong)
    for name, page in pages.items():
        print(_write(name, page.text))
    if everything:
        _write("index", index_text(pages))
    if everything and not os.environ.get("CLEARVIT_RESULTS"):
        import blocks

        for file in blocks.BLOCKS:
            print(blocks.write_blocks(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
