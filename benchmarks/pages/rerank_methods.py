"""Patch-level re-ranking against query expansion and k-reciprocal neighbors."""

from __future__ import annotations

from evidence import read_result

TOP = 50


def page() -> str:
    results = read_result("rerank-methods")
    if not results:
        return ""
    models = dict.fromkeys(key.split(", ")[1] for key in results)
    parts = [
        "# Patch-level re-ranking against query expansion and k-reciprocal neighbors\n",
        f"224 px, the nearest {TOP} re-ranked, 7 x 7 patches, attention as patch weights. Percent,"
        " 95 % CI over queries; Δ is the paired difference to descriptors. The setting was chosen"
        " by MAP@R on the even classes (even queries for places), the numbers are of the odd ones."
        f" {max(r['date'] for r in results.values())}. Reproduce:"
        f" `python benchmarks/rerank_methods.py --models {' '.join(models)}`\n",
    ]
    for key, found in results.items():
        lines = ["| method | chosen | P@1 | Δ P@1 | MAP@R | Δ MAP@R |", "|---|---|---|---|---|---|"]
        for name, cells in found["rows"].items():
            if name.endswith(", weight 1") and cells == found["rows"].get(name[:-10]):
                continue
            shown = [cell(cells[c]) for c in ("P@1", "Δ P@1", "MAP@R", "Δ MAP@R")]
            lines.append(f"| {name} | {cells['setting']} | {' | '.join(shown)} |")
        parts.append(f"## {key}, {found['queries']} queries\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def cell(value: list[float]) -> str:
    mean, low, high = value
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
