"""How an index grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evidence import read_result

CLOCKS = ("wall", "cpu")


def page() -> str:
    """Give one row per size, what a hundred million would take, and the published loop."""
    known = read_result("search_index")
    if not any(key.isdigit() for key in known):
        return ""
    rows = {int(key): row for key, row in known.items() if key.isdigit()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row["times"]))
    lines = [growth_row(count, rows[count], names) for count in sorted(rows)]
    largest = rows[max(rows)]
    each = largest["disk"] / max(rows)
    head = " | ".join(f"{name}, ms" for name in names)
    return f"""# How an index grows

{max(row["date"] for row in rows.values())}, {largest["machine"]}, {largest["cores"]} cores,
{largest["threads"]} thread of torch, local disk. Synthetic descriptors of 384 channels in
half precision and 7 x 7 patches of 64 bytes. Reproduce: `python benchmarks/index.py`
with `--counts {" ".join(map(str, sorted(rows)))}`. Build: CPU seconds of writing and joining,
without the network, {largest["commit"]} images per write; structure: CPU seconds to prepare an
approximate search. Searches: p50 / p99 by the clock, then p50 in CPU time of all threads, which a
busy machine disturbs less; "re-ranking 100" reads the patches of 100 candidates and compares them
by Chamfer; "a region" compares 49 patches with those of all images, above 20,000 with those of the
nearest 2,000. Recall: fraction of the exact 10 hits that an approximate search finds. Load: of the
machine at the end of the row.

| images | build, s | structure, s | disk | {head} | recall | load |
|---|---|---|---|{"---|" * len(names)}---|---|
{chr(10).join(lines)}

Size grows in proportion: 10 million images take {each * 1e7 / 1e9:.0f} GB and 100 million
{each * 1e8 / 1e9:.0f} GB (computed from {each / 1e3:.1f} kB each).

{compared_text(known)}
"""


def growth_row(count: int, row: dict[str, Any], names: Sequence[str]) -> str:
    none = "\N{EN DASH}"
    cells = []
    for name in names:
        found = row["times"].get(name)
        shown = "" if found is None else " / ".join(f"{1000 * s:.1f}" for s in found["wall"])
        cells.append(f"{shown}; {1000 * found['cpu'][0]:.1f}" if found else none)
    structure = f"{row['structure']['cpu']:.0f}" if row["structure"]["cpu"] else none
    size = f"{row['disk'] / 1e6:,.0f} MB ({row['disk'] / count / 1e3:.1f} kB each)"
    return (
        f"| {count:,} | {row['build']['cpu']:.1f} | {structure} | {size} | {' | '.join(cells)} |"
        f" {row['recall']:.3f} | {row['load']:.1f} |"
    )


def compared_text(known: dict[str, Any]) -> str:
    """The comparison with the published loop."""
    found = {key.partition(", ")[2]: v for key, v in known.items() if key.startswith("compared")}
    if not found:
        return ""
    first = next(iter(found.values()))
    lines = [
        f"Re-ranking of 100 among {first['images']:,} images, reading included, {first['rounds']}"
        f" interleaved rounds, load {first['load']:.1f}; how many times as fast as the published"
        " loop run to convergence, median and range:\n",
        "| patches of | re-ranking | ms, clock | ratio | ms, CPU | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for source, one in found.items():
        for name in one["wall"]:
            cells = []
            for clock in CLOCKS:
                ratio = one[clock][name]["ratio"]
                cells.append(f"{one[clock][name]['ms']:.1f}")
                cells.append(f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})")
            lines.append(f"| {source} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
