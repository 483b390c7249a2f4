"""Whether an index could choose k-reciprocal re-ranking without labels."""

from __future__ import annotations

from typing import Any

from evidence import read_result
from pages.facets import TITLES

COLUMNS = ("P@1", "MAP@R", "MAP@R, first kept", "criterion", "held-out channels")
HEAD = """# Could an index choose k-reciprocal re-ranking by itself?

224 px, descriptors as the model makes them, the nearest 100 re-ranked with the default numbers of
neighbors (20 for k-reciprocal, 5 for expansion). Changes in percent, with their 95 % interval over
classes (queries of places). "First kept": the nearest image by descriptor stays first, so P@1 does
not change. The last two columns use no labels: the criterion of `facet="auto"` (neighbors that
crops keep + a quarter of the crops that find their image), and how well the nearest by one half of
the directions are found from the other half. {date}. Reproduce:
`python benchmarks/neighbor_choice.py`

<!-- notes -->
"""


def page() -> str:
    """Give one table for each way to re-rank."""
    results = read_result("neighbor_choice")
    if not results:
        return ""
    parts = [HEAD.format(date=max(one["date"] for one in results.values()))]
    for title in next(iter(results.values()))["rows"]:
        parts += [f"## {title}\n", table(title, results)]
    return "\n".join(parts)


def table(title: str, results: dict[str, Any]) -> str:
    lines = ["| set | model | P@1 | MAP@R | " + " | ".join(f"Δ {c}" for c in COLUMNS) + " |"]
    lines.append(f"|---|---|---|---|{'---|' * len(COLUMNS)}")
    for key, found in results.items():
        model, name = key.split(" ")
        cells = [_cell(found["rows"][title][column]) for column in COLUMNS]
        name += ", held out" if found["held out"] else ""
        base = f"{found['P@1']:.1f} | {found['MAP@R']:.1f}"
        lines.append(f"| {name} | {TITLES.get(model, model)} | {base} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _count(title, results), ""])


def _cell(change: dict[str, float]) -> str:
    return f"{change['mean']:+.1f} [{change['low']:+.1f}, {change['high']:+.1f}]"


def _count(title: str, results: dict[str, Any]) -> str:
    """Say how often each criterion has the sign of the change."""
    rows = [found["rows"][title] for found in results.values()]
    said = []
    for column in COLUMNS[-2:]:
        right = sum((row[column]["mean"] > 0) == (row["MAP@R"]["mean"] > 0) for row in rows)
        said.append(f"{column} in {right}")
    better = sum(row["MAP@R"]["low"] > 0 for row in rows)
    worse = sum(row["MAP@R"]["high"] < 0 for row in rows)
    lost = sum(row["P@1"]["high"] < 0 for row in rows)
    return (
        f"MAP@R is better beyond noise in {better} of {len(rows)} tables and worse in {worse}; P@1"
        f" is worse beyond noise in {lost}. The sign of the change of MAP@R: {', '.join(said)} of"
        f" {len(rows)}."
    )
