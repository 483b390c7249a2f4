"""Patch-level re-ranking against query expansion and k-reciprocal neighbors."""

from __future__ import annotations

from typing import Any

from evidence import read_result
from pages.facets import TITLES, difference

METRICS = ("P@1", "MAP@R", "R@5", "R@10")
HEAD = """# Patch-level re-ranking against query expansion and k-reciprocal neighbors

224 px, the nearest {top} re-ranked, 7 x 7 patches, attention as patch weights. Percent; Δ is the
paired difference to descriptors with its 95 % interval over classes (queries of the corridor). The
setting was chosen by MAP@R on the even classes (even queries of the corridor), with descriptors
alone as a candidate; the numbers are of the odd ones. "Ratio" is the spread of the patch
similarities in the score over that of the cosines. The column "auto" is what an index chooses by
itself, without labels, on all queries of the odd half ([facets](facets.md)). {date}. Reproduce:
`python benchmarks/rerank_methods.py`

<!-- notes -->
"""


def page() -> str:
    """Give an overview, and one table per model and set."""
    results = read_result("rerank-methods")
    if not results:
        return ""
    first = next(iter(results.values()))
    date = max(one["date"] for one in results.values())
    parts = [HEAD.format(top=first["top"], date=date), overview(results)]
    for key, found in results.items():
        parts += [f"## {_title(key)}, {found['queries']} queries\n", table(found["rows"])]
    return "\n".join(parts)


def overview(results: dict[str, Any]) -> str:
    """Give Δ MAP@R of each method, and of what an index chooses without labels."""
    chosen = read_result("facets")
    titles = [title for title in next(iter(results.values()))["rows"] if title != "descriptors"]
    lines = [f"Δ MAP@R:\n\n| set and model | {' | '.join(titles)} | auto |"]
    lines.append(f"|---|{'---|' * len(titles)}---|")
    for key, found in results.items():
        cells = [difference(found["rows"][title]["MAP@R"]) for title in titles]
        mine = chosen.get(key)
        cells.append(difference(mine["rows"]["auto"]["MAP@R"]) if mine else "\N{EN DASH}")
        lines.append(f"| {_title(key)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table(rows: dict[str, Any]) -> str:
    """Give all methods of one model and set."""
    lines = ["| method | chosen | P@1 | Δ P@1 | MAP@R | Δ MAP@R | R@5 | R@10 |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for title, cells in rows.items():
        shown = []
        for metric in METRICS:
            shown.append(f"{cells[metric]['value']['mean']:.1f}")
            if metric in METRICS[:2]:
                shown.append(difference(cells[metric]))
        lines.append(f"| {title} | {cells['setting']} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _title(key: str) -> str:
    model, name = key.split(" ")
    return f"{name}, {TITLES.get(model, model)}"
