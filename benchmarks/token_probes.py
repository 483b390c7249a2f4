"""The experiments of "Vision Transformers Need Registers" on real models with artifacts.

    python benchmarks/token_probes.py [--models demo …] [--limit 200]
    python benchmarks/token_probes.py --page     # docs/results/token_probes.md from the JSON alone

Neighbors after patch embedding, linear probes for position and pixels, and classification from one
random token, at the block where `diagnose` finds most artifact tokens, on 200 images of imagenet100
(224 px; the demo model at 336 px, where it has artifacts). Writes results/token_probes.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.files import write_json, written_whole
from data import DATA, RESULTS, data_path, find_model

OUT = Path(__file__).parent / "results" / "token_probes.json"
SIZES = {"vit_tiny_patch16_224.augreg_in21k_ft_in1k": 224, "demo": 336}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SIZES))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(OUT.read_text()) if OUT.exists() else {"models": {}}
    content["command"] = "python benchmarks/token_probes.py"
    for model in () if options.page else options.models:
        if model not in content["models"]:
            content["models"][model] = measure(model, options)
            content["date"] = time.strftime("%Y-%m-%d")
            write_json(OUT, content)
    with written_whole(RESULTS / "token_probes.md") as part:
        part.write_text(page(content), "utf-8")


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    backbone = cv.load(find_model(model), size=SIZES.get(model, 224))
    found = cv.diagnose(backbone, options.data, limit=options.limit, equivariance=False)
    assert found.experiments is not None
    attention = None if found.attention is None else str(found.attention)
    size = SIZES.get(model, 224)
    text = json.dumps(found.experiments.to_json()).replace(backbone.name, model)  # not a path
    return {"size": size, "attention": attention, "experiments": json.loads(text)}


def page(content: dict[str, Any]) -> str:
    lines = [
        "# What artifact tokens know",
        "",
        f"{content['date']}: `{content['command']}`. The experiments of *Vision Transformers Need"
        " Registers* on models with artifact tokens, beside the paper's numbers for DINOv2"
        " ViT-g/14 (thousands of images). Mean and standard deviation over three seeds.",
    ]
    for model, entry in content["models"].items():
        found = entry["experiments"]
        lines += ["", f"## {model}, {entry['size']} px", ""]
        lines += [
            f"{found['images']} images, block {found['block']} (from 0),"
            f" {100 * found['fraction']:.2f} % of the tokens are artifacts. {entry['attention']}",
            "",
            *redundancy(found["redundancy"]),
        ]
        published = {one["name"]: one for one in found["published"]}
        for name in ("position", "pixels", "classes"):
            if found[name] is not None:
                lines += ["", *table(found[name], published.get(found[name]["name"]))]
    notes = OUT.with_suffix(".notes.md")
    if notes.exists():
        lines += ["", notes.read_text("utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def redundancy(found: dict[str, Any]) -> list[str]:
    low, high = found["interval"]
    return [
        f"Cosine to the four neighbors after patch embedding: {found['outlier']:.3f} at artifact"
        f" positions, {found['normal']:.3f} at others (difference {found['difference']:+.3f},"
        f" {low:+.3f} to {high:+.3f}; AUROC {found['auroc']:.2f}). The paper's outliers pile up"
        " near 1."
    ]


def table(probe: dict[str, Any], published: dict[str, Any] | None) -> list[str]:
    theirs = {row["kind"]: row for row in published["rows"]} if published else {}
    names = list(published["metrics"]) if published and theirs else []
    lines = [
        f"| {probe['name']} probe | {' | '.join(probe['metrics'])} | tokens"
        + "".join(f" | paper: {name}" for name in names)
        + " |",
        "|" + "---|" * (2 + len(probe["metrics"]) + len(names)),
    ]
    for row in probe["rows"]:
        cells = [row["kind"], *scores(row), str(row["count"])]
        if names:
            cells += scores(theirs[row["kind"]]) if row["kind"] in theirs else [""] * len(names)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", probe["note"]]


def scores(row: dict[str, Any]) -> list[str]:
    stds = row["sds"]
    return [
        ("" if mean is None else f"{mean:.2f}") + (f" ± {std:.2f}" if std else "")
        for mean, std in zip(row["means"], stds, strict=True)
    ]


if __name__ == "__main__":
    main()
