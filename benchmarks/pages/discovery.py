"""CorLoc of LOST, TokenCut and the consensus of `discover`."""

from __future__ import annotations

import numpy as np

from cells import percent_interval
from evidence import read_result

Rows = dict[str, dict[str, list[bool]]]

PLANTED = ", planted artifacts"


def paired(found: np.ndarray, other: np.ndarray) -> str:
    return percent_interval(found.astype(float) - other.astype(float), signed=True)


def page() -> str:
    content = read_result("discovery")
    if "rows" not in content:
        return ""
    rows: Rows = content["rows"]
    tables = []
    for key, methods in rows.items():
        ours = np.array(methods["consensus"])
        lines = [
            f"\n## {key}\n",
            "| method | features | all | even (chosen on) | odd | consensus minus this, all |",
            "|---|---|---|---|---|---|",
        ]
        for name, listed in methods.items():
            found = np.array(listed)
            cells = " | ".join(percent_interval(part) for part in (found, found[::2], found[1::2]))
            features = "final tokens" if " views, " in key else METHODS[name]
            lines.append(f"| {name} | {features} | {cells} | {paired(ours, found)} |")
        tables.append("\n".join(lines) + cost(key, rows))
    sizes = list(dict.fromkeys(size_of(key) for key in rows))
    tables = [side_by_side(size, rows) for size in sizes] + tables
    return HEAD.format(count=content["images"], tables="\n".join(tables))


def size_of(key: str) -> str:
    return key.rpartition(", ")[2]


def side_by_side(size: str, rows: Rows) -> str:
    """The models of one size, with their differences to the first on the same images."""
    lines = [f"\n## side by side, {size}\n", "| method | model | all | minus the first |"]
    lines.append("|---|---|---|---|")
    mine = {key.removesuffix(f", {size}"): row for key, row in rows.items() if size_of(key) == size}
    first = next(iter(mine.values()))
    for method in ("LOST", "consensus"):
        for name, row in mine.items():
            found = np.array(row[method])
            apart = "-" if row is first else paired(found, np.array(first[method]))
            lines.append(f"| {method} | {name} | {percent_interval(found)} | {apart} |")
    return "\n".join(lines)


def cost(key: str, rows: Rows) -> str:
    """Correct boxes with planted artifacts minus those without, on the same images."""
    without = rows.get(key.replace(PLANTED, ""))
    if PLANTED not in key or without is None:
        return ""
    lines = ["\n\n| method | planted minus clean |", "|---|---|"]
    for name, listed in rows[key].items():
        lines.append(f"| {name} | {paired(np.array(listed), np.array(without[name]))} |")
    return "\n".join(lines)


METHODS = {
    "whole image": "the trivial answer",
    "LOST": "keys of the last block, as published",
    "LOST, centred": "keys of the last block minus their mean",
    "LOST, mean bias": "unit queries of the last block, bias = -mean cosine",
    "TokenCut": "keys of the last block, tau 0.2, as published",
    "TokenCut, mean tau": "keys of the last block, tau = mean cosine",
    "consensus, unchecked": "without leaving artifact tokens out",
    "consensus": "tokens and values of the later half",
}


HEAD = """# Object discovery: CorLoc

Percent of images whose single box has an IoU of 0.5 or more with a true box of any class.
{count} images of PASCAL VOC 2012 with boxes (all objects, also difficult and truncated ones); whole
image resized to a square. In brackets 95 % intervals over resampled images; the last column
compares the same images.

The rules of our default were picked by the images at even places of the list, at 224 px; results on
those at odd places were seen at the same time, so they are not a blind test. The images are few:
differences of some points mean nothing. LOST and TokenCut as published are degenerate on the keys
of DINOv2, whose products are all positive and whose cosines exceed tau: every patch is like every
other, and the commands warn of it. Planted: 2 % high-norm tokens from the middle block on.
{tables}
"""
