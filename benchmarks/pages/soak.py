"""Kills and fuzzing: what was taken over, and the reports of later runs.

`soak.py --out benchmarks/results/soak-NAME.json` and `fuzz.py --out …/fuzz-NAME.json` add a row.
"""

from __future__ import annotations

from typing import Any

from evidence import read_result, read_results
from render import parts_text


def page() -> str:
    content = read_result("soak")
    table = next(part for part in content["parts"] if "rows" in part)
    table["rows"] += [soak_row(one) for one in read_results("soak-*")]
    table["rows"] += [fuzz_row(one) for one in read_results("fuzz-*")]
    return parts_text(content)


def soak_row(found: dict[str, Any]) -> list[str]:
    verbs = ", ".join(verb for verb, one in found["by_verb"].items() if one["trials"])
    ended = "" if found["finished"] else ", not ended"
    tries = f"{found['trials']:,} trials, {found['kills']:,} kills"
    return [
        f"soak: {verbs}",
        f"{found['minutes']:.0f} minutes{ended}",
        tries,
        listed(found["faults"]),
    ]


def fuzz_row(found: dict[str, Any]) -> list[str]:
    tries = f"{sum(found['tries'].values()):,}"
    kinds = f"fuzz: {len(found['tries'])} kinds of files"
    return [kinds, f"{found['minutes']:.0f} minutes", tries, listed(found["findings"])]


def listed(faults: list[Any]) -> str:
    return f"{len(faults)}: " + "; ".join(map(str, faults)) if faults else "nothing"
