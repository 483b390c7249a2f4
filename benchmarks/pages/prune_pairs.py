"""Pairs along rows or on a checkerboard."""

from __future__ import annotations

from evidence import read_result

HEAD = """# Pairs along rows or on a checkerboard

`python benchmarks/prune_pairs.py`. `fuse` merges pairs of patches between two sides. Dealt
alternately, a grid of even width has one side in every other column, so pairs lie in rows; on a
checkerboard all four neighbors of a patch are on the other side. The same number of MACs, without
training, 224 px. Each cell: rows, checkerboard, and the 95 % interval of the paired difference over
images."""


def page() -> str:
    """Cosines first, then tasks."""
    content = read_result("prune_pairs")
    if not content:
        return ""
    lines = [HEAD]
    if content.get("cosines"):
        count = content["cosines"][0]["images"]
        lines += ["", f"Cosine to the dense model, {count} VOC photos:", ""]
        lines += ["| model | keep | class token | map |", "|---|---|---|---|"]
        for row in content["cosines"]:
            cells = [cosine(row["class cosine"]), cosine(row["map cosine"])]
            lines.append(f"| {row['model']} | {row['keep']:g} | {' | '.join(cells)} |")
    if content.get("tasks"):
        lines += ["", "Tasks of [the choice of a scorer](prune_choice.md), all images:", ""]
        lines += ["| model | keep | top-1 or 1-NN, % | mIoU of a probe |", "|---|---|---|---|"]
        for row in content["tasks"]:
            cells = [percent(row["right"]), percent(row["mIoU"])]
            lines.append(f"| {row['model']} | {row['keep']:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def percent(numbers: list[float]) -> str:
    """Two percentages and an interval."""
    return "{:.1f}, {:.1f} ({:+.1f} to {:+.1f})".format(*numbers)


def cosine(numbers: list[float]) -> str:
    """Two cosines and an interval."""
    return "{:.3f}, {:.3f} ({:+.4f} to {:+.4f})".format(*numbers)
