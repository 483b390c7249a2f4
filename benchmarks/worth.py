"""Put the table of what clean tokens are worth into docs/evaluate.md.

    python benchmarks/worth.py

Reads docs/results/dense.md and discovery.md, which dense.py and discovery.py write, and measures
nothing. A row has the value of the raw model and how far the others are from it.
"""

from __future__ import annotations

import re
from pathlib import Path

from figures import numbers, tables

PAGE = Path(__file__).parents[1] / "docs" / "evaluate.md"
HEAD = "| | labelled | raw | 10 views | cured | test-time |\n|---|---|---|---|---|---|"
MODELS = ("denoised", "cured", "test-time")
SOME = ", 50 of the test images"
# Title of a table, its column, and how the row begins.
TASKS = (
    ("segmentation, 224 px", 6, "linear probe, 224 px, mIoU of 7 VOC classes"),
    ("segmentation, 224 px", 4, "the same, mIoU of all 21"),
    ("segmentation, 448 px", 6, "linear probe, 448 px, mIoU of 7"),
    ("segmentation, 448 px", 4, "the same, mIoU of all 21"),
    (f"segmentation, 448 px{SOME}", 6, "linear probe, 448 px, 50 test images, mIoU of 7"),
    (f"segmentation, 448 px{SOME}", 4, "the same, mIoU of all 21"),
    ("neighbours, 224 px", 6, "dense neighbours, 224 px, mIoU of 7"),
    ("neighbours, 224 px", 4, "the same, mIoU of all 21"),
    (f"neighbours, 448 px{SOME}", 6, "dense neighbours, 448 px, 50 test images, mIoU of 7"),
    (f"neighbours, 448 px{SOME}", 4, "the same, mIoU of all 21"),
    ("depth, 224 px", 4, "depth, 224 px, RMSE in metres"),
    ("depth, 224 px", 6, "depth, 224 px, delta1"),
    ("depth, 448 px", 4, "depth, 448 px, RMSE in metres"),
    ("depth, 448 px", 6, "depth, 448 px, delta1"),
    ("classification, 224 px", 4, "top-1, 224 px"),
    ("clustering, 224 px", 4, "clusters of one image, 224 px, mIoU"),
    ("clustering, 448 px", 4, "clusters of one image, 448 px, mIoU"),
    ("class-correspondence, 224 px", 4, "same class in another photo, 224 px"),
    ("class-correspondence, 448 px", 4, "same class in another photo, 448 px"),
)
SETTINGS = {"knn": "1-NN", "prototypes": "4-shot prototypes"}


def main() -> None:
    lines = [HEAD, *task_lines(), *discovery_lines()]
    text = PAGE.read_text()
    start = text.index(HEAD.splitlines()[0])
    stop = text.index("\n\n", start)
    PAGE.write_text(text[:start] + "\n".join(lines) + text[stop:])


def task_lines() -> list[str]:
    found = tables("dense.md")
    lines = []
    for title, column, name in TASKS:
        cells: dict[tuple[str, int], dict[str, list[str]]] = {}
        for row in found[title]:
            cells.setdefault((row[0], int(row[1])), {})[row[2]] = row[column : column + 2]
        for (setting, labelled), models in cells.items():
            known = setting in SETTINGS
            first = f"{SETTINGS[setting]}, {name}" if known else name
            count = "4 a class" if setting == "prototypes" else str(labelled or "")
            lines.append(line(first, count, models["raw"][0], apart(models)))
    return lines


def apart(models: dict[str, list[str]]) -> list[str]:
    """Differences to the raw model, in bold where they are beyond chance."""
    return [beyond(models[name][1]) if name in models else "-" for name in MODELS]


def discovery_lines() -> list[str]:
    found = tables("discovery.md")
    lines = []
    for size in ("224 px", "448 px"):
        for method, name in (("LOST", "LOST as published"), ("ours", "our default")):
            rows = [row for row in found[f"side by side, {size}"] if row[0] == method]
            by_model = {row[1]: row[2:] for row in rows}
            views = next((model for model in by_model if model.endswith("views")), None)
            by_model["denoised"] = by_model.get(views or "", ["-", "-"])
            raw = by_model["demo"][0]
            lines.append(line(f"CorLoc, {name}, {size}", "", raw, apart(by_model)))
    return lines


def line(name: str, labelled: str, raw: str, others: list[str]) -> str:
    return f"| {name} | {labelled} | {re.sub(r' [(].*', '', raw)} | {' | '.join(others)} |"


def beyond(cell: str) -> str:
    """Bold, where the interval leaves out 0."""
    values = numbers(cell)
    if len(values) < 3 or values[1] <= 0 <= values[2]:
        return cell
    mean, rest = cell.split(" ", 1)
    return f"**{mean}** {rest}"


if __name__ == "__main__":
    main()
