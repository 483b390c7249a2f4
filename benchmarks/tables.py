"""Results that are tables of text: read from the Markdown that a script composes, and given back.

    write_tables("views", text, data=["photos"], models=["demo"])    # results/views.json, the page

A table is stored cell by cell, as {"columns": […], "rows": [[…], …]}; headings and paragraphs are
stored between tables. `numbers` reads the numbers of a cell.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from evidence import read_result, write_result
from render import render

Part = dict[str, Any]


def write_tables(name: str, markdown: str, **how: Any) -> Path:
    """Store the tables of a page and write the page; `how` as in `write_result`."""
    write_result(name, read_markdown(markdown), **how)
    return render(name)


def read_markdown(text: str) -> dict[str, Any]:
    """Take a page apart into its title and its parts."""
    blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    title, *others = [piece for block in blocks for piece in _split_headings(block)]
    return {"title": title.removeprefix("# "), "parts": [_read_part(one) for one in others]}


def _split_headings(block: str) -> list[str]:
    """A heading may stand directly above its text."""
    lines = block.strip("\n").split("\n")
    if lines[0].startswith("#") and len(lines) > 1:
        return [lines[0], *_split_headings("\n".join(lines[1:]))]
    return ["\n".join(lines)]


def _read_part(block: str) -> Part:
    if block.startswith("#"):
        return {"heading": block}
    lines = block.split("\n")
    if len(lines) < 2 or not re.fullmatch(r"\|?(\s*:?-+:?\s*\|)+\s*", lines[1]):
        return {"text": block}
    columns, _, *rows = [_cells(line) for line in lines]
    return {"columns": columns, "rows": rows}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def numbers(cell: str) -> list[float]:
    """Read "1.36 (1.24 to 1.53)" or "47.0 ± 3.2 (39.3 to 49.8)"."""
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?", cell)]


def tables_below(name: str) -> dict[str, list[list[str]]]:
    """Rows of a result's tables by the heading above them."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for part in read_result(name).get("parts", []):
        if "heading" in part:
            heading = part["heading"].lstrip("# ")
        elif "rows" in part:
            found.setdefault(heading, []).extend(part["rows"])
    return found
