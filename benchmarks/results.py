"""List the result pages on one, with what makes each of them again.

    python benchmarks/results.py

Reads docs/results/*.md, which the other scripts of this directory write, and measures nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from data import RESULTS

COMMAND = re.compile(r"`(python benchmarks/[^`]+)`")
DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")


def main() -> None:
    rows = [row(path) for path in sorted(RESULTS.glob("*.md")) if path.stem != "index"]
    (RESULTS / "index.md").write_text(HEAD + "\n".join(rows) + "\n")


def row(path: Path) -> str:
    text = path.read_text("utf-8")
    title = text.splitlines()[0].removeprefix("# ")
    command, date = COMMAND.search(text), DATE.search(text)
    made = f"`{' '.join(command[1].split())}`" if command else "written by hand"
    return f"| [{title}]({path.name}) | {made} | {date[0] if date else '-'} |"


HEAD = """# Results

Every page names its data, its counts and the machine. All of them were measured on two CPU cores
without a GPU; ratios carry over to other machines better than times.

| page | made by | on |
|---|---|---|
"""


if __name__ == "__main__":
    main()
