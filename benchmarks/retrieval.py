"""Does patch-level re-ranking help? Against descriptors, on labelled images.

    python benchmarks/retrieval.py [--cured dir:PATH] [--sets cars flowers corridor]
    python benchmarks/retrieval.py --search [--cured dir:PATH]      # what could make it help

The first table compares full, partial (0.7) and automatic transport with all patch weights,
mutually nearest patches and Chamfer, at weight 1 and as the gate decides, all on the same
queries. The second searches layer, projection, centering, artifacts, grid, calibration and weight:
chosen on the even classes (or queries), reported on the odd ones. Features are extracted once into
--work, every finished table is kept there, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.evaluation.evaluate import evaluate
from clearvit.files import write_json
from data import DATA, data_path, find_model
from tables import write_tables

WEIGHTS = ("uniform", "attention", "rollout", "rollout-min", "without-artifacts", "cross")
METHODS = ("transport", "mutual", "chamfer")
SHOWN = ("P@1", "RP", "MAP@R", "MAP@R (diml)", "R@5", "Δ P@1", "Δ MAP@R", "won", "lost", "mass")


def title_of(model: str) -> str:
    """Name a model without the place where it lies."""
    return "cured" if model.startswith("dir:") else model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cured", nargs="*", default=[], help="more models, such as dir:PATH")
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--sets", nargs="+", default=["cars", "flowers", "corridor"])
    parser.add_argument("--classes", type=int, help="a few of the classes only, to try it out")
    parser.add_argument("--limit", type=int, help="queries")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("retrieval-work"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    torch.set_num_threads(options.threads)
    backbones = {
        name: cv.load(find_model(name), size=options.size) for name in ("demo", *options.cured)
    }
    if options.search:
        from retrieval_search import search_page

        text, name = search_page(backbones, options), "retrieval_search"
    else:
        text, name = tables_page(backbones, options), "retrieval"
    write_tables(name, text, data=options.sets, models=list(backbones))
    print(text)


def tables_page(backbones: dict[str, cv.Backbone], options: argparse.Namespace) -> str:
    parts = [
        "# Retrieval: descriptors against patch-level re-ranking\n",
        f"{options.size} px, the nearest 100 re-ranked, percent, 95 % intervals over queries;"
        " Δ is the difference to descriptors on the same queries, won and lost the share of"
        " queries whose MAP@R rose and fell. Queries of a class are not independent, so intervals"
        f" are rather narrow. {time.strftime('%Y-%m-%d')}. Reproduce:"
        " `python benchmarks/retrieval.py --cured dir:PATH`\n",
    ]
    for name in options.sets:
        for model, backbone in backbones.items():
            rows: list[dict[str, Any]] = []
            for method in METHODS:
                found = kept(backbone, name, method, options)
                rows += found["rows"][bool(rows) :]  # the row of descriptors once
            text = f"{gated_table(rows)}\n\n{gate_verdict(rows)}"
            parts.append(f"## {name}, {title_of(model)}\n\n{text}\n")
            print(parts[-1], flush=True)
    return "\n".join(parts)


def kept(
    backbone: cv.Backbone, name: str, method: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One finished table, from --work when it is there."""
    parts = (name, method, backbone.fingerprint()[:8], options.limit, options.classes)
    key = "-".join(map(str, ("retrieval", *parts)))
    file = options.work / f"{key}.json"
    if not file.exists():
        start = time.perf_counter()
        found = evaluate(
            backbone,
            task="retrieval",
            data=some_classes(options.data / name, options),
            size=options.size,
            limit=options.limit,
            cache=options.work / "features",
            methods=(method,),
            patch_weights=WEIGHTS,
            masses=(1.0, 0.7, "auto"),
        )
        write_json(file, found.to_json())
        print(f"{file.name}: {time.perf_counter() - start:.0f} s", flush=True)
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def some_classes(folder: Path, options: argparse.Namespace) -> Path:
    """Link a few class folders, for trying the script out."""
    if options.classes is None or (folder / "ground_truth.json").exists():
        return folder
    few = options.work / f"few-{options.classes}" / folder.name
    few.mkdir(parents=True, exist_ok=True)
    for place in sorted(p for p in folder.iterdir() if p.is_dir())[: options.classes]:
        if not (few / place.name).exists():
            (few / place.name).symlink_to(place.resolve())
    return few


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown, a cell as mean [low, high]."""
    there = {n for row in rows for n in row["values"]}
    shown = [n for n in SHOWN if n in there]
    lines = [f"| setting | {' | '.join(shown)} |", "|---" * (1 + len(shown)) + "|"]
    for row in rows:
        cells = [cell(row["values"].get(name)) for name in shown]
        lines.append(f"| {row['setting']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gated_table(rows: list[dict[str, Any]]) -> str:
    """One line per setting at weight 1, and beside it what the gate makes of it."""
    gated = {row["setting"].partition(", gate")[0]: row for row in rows if has_gate(row)}
    plain = [row for row in rows if not has_gate(row)]
    head, rule, *lines = table(plain).splitlines()
    lines = [f"{lines[0]} \N{EN DASH} | \N{EN DASH} |", *lines[1:]]
    for place, row in enumerate(plain[1:], start=1):
        said = gated[row["setting"].removesuffix(", weight 1")]
        weight = said["setting"].rpartition("(")[2].rstrip(")")
        lines[place] += f" {weight} | {cell(said['values']['Δ MAP@R'])} |"
    return "\n".join([f"{head} gate's weight | Δ MAP@R, gated |", f"{rule}---|---|", *lines])


def has_gate(row: dict[str, Any]) -> bool:
    return ", gate" in row["setting"]


def cell(value: dict[str, float] | None) -> str:
    if value is None or value["mean"] is None:
        return "\N{EN DASH}"
    digits = 2 if abs(value["mean"]) < 1 else 1
    low, high = (f"{value[end]:.{digits}f}" for end in ("low", "high"))
    return f"{value['mean']:.{digits}f} [{low}, {high}]"


def gate_verdict(rows: list[dict[str, Any]]) -> str:
    """Hold every decision of the gate against the ranking by descriptors."""
    gated = [row for row in rows if has_gate(row)]
    worst = min(row["values"]["Δ MAP@R"]["mean"] for row in gated)
    zero = sum("gate (0)" in row["setting"] for row in gated)
    return (
        f"The gate keeps the descriptors in {zero} of {len(gated)} settings; its worst"
        f" difference in MAP@R is {worst:+.2f}."
    )


if __name__ == "__main__":
    main()
