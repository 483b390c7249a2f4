"""Searching for a part of an image."""

from __future__ import annotations

from evidence import read_result


def page() -> str:
    known = read_result("regions")
    names = ("photo first, %", "IoU at least 0.5, %", "IoU, mean")
    lines = [
        f"| model | photos | parts | facet | query | {' | '.join(names)} |",
        "|---" * (len(names) + 5) + "|",
    ]
    for model, content in known.items():
        for title, row in content["rows"].items():
            cells = [model, f"{content['images']:,}", content["crops"], content["facet"], title]
            for name in names:
                digits = 2 if "mean" in name else 0
                shown = [f"{row[name][key]:.{digits}f}" for key in ("mean", "low", "high")]
                cells.append("{} [{}, {}]".format(*shown))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    date = max(content["date"] for content in known.values())
    return (
        f"# Searching for a part of an image\n\n{HEAD}\n\n224 px, 7 x 7 patches of 64 bytes; 95 %"
        f" intervals over parts. {date}. Reproduce: `python benchmarks/regions.py`\n\n"
        + "\n".join(lines)
        + "\n"
    )


HEAD = (
    "An index of real photos (photos, imagenet100, flowers) is built with all defaults. Of some of"
    " them a random part of a quarter of the area is cut out, scaled by 0.6 to 1.6, with other"
    ' colors, and searched for. "Alone": the query shows the part only. "In its photo": the query'
    " is the whole photo, scaled and with other colors, and the part is a region of it. A hit"
    " counts if the photo comes first; its box is compared with the part that was cut out"
    " (intersection over union)."
)
