"""Strokes from one example: what was tried."""

from __future__ import annotations

import numpy as np

from clearvit.stats import bootstrap
from evidence import read_result

HEAD = """# Strokes from one example: what was tried

`python benchmarks/segment_strokes.py --work WORK`. One example per class, three strokes per class
in each, fine, cured tokens of the demo model, `mixed`. Some draws and every second validation image
choose; the numbers come from other draws and the other validation images. Mean IoU of seven
classes, and the ratio to that from full masks, draw by draw, with its 95 % interval."""


def page() -> str:
    """Every way, on the draws that choose and on those that report."""
    rows = read_result("segment_strokes").get("rows", [])
    halves = [[row["mIoU"] for row in rows if row["chooses"] is half] for half in (True, False)]
    if not all(halves):
        return ""
    ways = list(rows[0]["mIoU"])
    chosen = max(ways[1:], key=lambda way: np.mean([row[way] for row in halves[0]]))
    counts = [f"{len(half)} draws" for half in halves]
    lines = [
        HEAD,
        "",
        f"The draws that choose prefer: {chosen}.",
        "",
        f"| labels | {counts[0]}, choosing | of masks | {counts[1]}, reporting | of masks |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        cells = [way]
        for half in halves:
            ratio = bootstrap([100 * row[way] / row["masks"] for row in half])
            cells.append(f"{np.mean([row[way] for row in half]):.1f}")
            cells.append(f"{ratio.mean:.0f} % ({ratio.low:.0f} to {ratio.high:.0f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
