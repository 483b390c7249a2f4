"""Find numbers in README and docs that no result holds.

    python benchmarks/trace_numbers.py            # lists them; exit code 1 if there are any

Looked at are numbers with a decimal point and percentages, outside code and outside the blocks that
render.py writes. Each must stand on a page of results that its section links to, as it is or
rounded. Numbers that are no results (defaults, published ones, computed ones) are named in the
section by a comment that says what they are: `<!-- not results: 0.9 0.99, defaults -->`, or
`<!-- not results: all, published by PH-Reg -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
BLOCK = re.compile(r"<!-- begin .*?<!-- end [^>]*-->", re.DOTALL)
EXCEPTIONS = re.compile(r"<!-- not results: (.*?)-->", re.DOTALL)
ADDRESS = re.compile(r"\]\([^)]*\)|https?://\S+|arXiv[: \n]\d{4}\.\d{5}|\d{4}\.\d{5}")
NUMBER = re.compile(r"(?<![\w.-])(?:\d+\.\d+(?!\w|\.\d)|\d+(?= %))")
CERTAIN = {"0", "95", "100"}  # 95 % intervals, nothing and everything


def documents() -> list[Path]:
    """README and the documents that are no results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def find_numbers(text: str) -> Iterator[tuple[str, str, bool]]:
    """Give heading, number and whether it has a source, for every number of a document."""
    for section in re.split(r"\n(?=#+ )", CODE.sub("", BLOCK.sub("", text))):
        heading = section.strip().split("\n")[0]
        pages = re.findall(r"results/(\w+)\.md", section)
        excepted = " ".join(EXCEPTIONS.findall(section))
        plain = ADDRESS.sub("]", EXCEPTIONS.sub("", section))
        allowed = set(re.findall(r"\d+(?:\.\d+)?", excepted)) | CERTAIN
        everything = excepted.startswith("all,")
        for number in NUMBER.findall(plain):
            yield heading, number, everything or number in allowed or _is_on(pages, number)


def _is_on(pages: list[str], number: str) -> bool:
    """Whether one of the pages holds the number, or one that is rounded to it."""
    near = 0.501 * 10.0 ** -len(number.partition(".")[2])
    return any(abs(value - float(number)) <= near for page in pages for value in _values(page))


@cache
def _values(page: str) -> tuple[float, ...]:
    path = ROOT / "docs" / "results" / f"{page}.md"
    if not path.exists():
        return ()
    found = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", path.read_text("utf-8"))]
    return (*found, *(100 * value for value in found if value <= 1))


def find_untraced() -> list[str]:
    """Numbers without a source, with their places."""
    return [
        f"{path.relative_to(ROOT)}, {heading}: {number}"
        for path in documents()
        for heading, number, traced in find_numbers(path.read_text("utf-8"))
        if not traced
    ]


def main() -> int:
    missing = find_untraced()
    print("\n".join(missing) or "Every number has a source.")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
