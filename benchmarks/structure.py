"""Does the structure of a backbone's patches tell whether patch-level re-ranking helps it?

    python benchmarks/structure.py            # measures what is missing, then writes the page
    python benchmarks/structure.py --page     # docs/results/structure.md from the JSON alone

The measures of `clearvit compare --structure` on 24 images of each collection, and what re-ranking
by patches (symmetric Chamfer, 49 patches of an image, weight 1, no gate) really changes there, for
six backbones. Rank correlations over all pairs of backbone and collection, with the p value of
10,000 permutations; and how often a cut of each measure, learned on two collections, predicts the
sign of the change in the third. Writes benchmarks/results/structure.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import clearvit as cv
from clearvit.artifacts.structure import measure_structure
from clearvit.backbones.guarded_timm import timm
from clearvit.files import write_json, written_whole
from clearvit.images import find_images, spread_evenly
from data import DATA, RESULTS, data_path, find_model

OUT = Path(__file__).parent / "results" / "structure.json"
COLLECTIONS = {"cars": "MAP@R", "flowers": "MAP@R", "corridor": "R@1"}
MEASURES = ("smoothness", "separation", "corners", "background")
IMAGES, SIZE, PERMUTATIONS = 24, 224, 10_000
UNTRAINED = "vit_small_patch14_dinov2"
BACKBONES = (
    "demo",
    "demo-cured",
    "demo, projected",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "untrained ViT-S/14",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(OUT.read_text()) if OUT.exists() else {"rows": {}}
    content |= {"command": "python benchmarks/structure.py", "images": IMAGES, "size": SIZE}
    for name in () if options.page else BACKBONES:
        missing = [one for one in COLLECTIONS if f"{name} / {one}" not in content["rows"]]
        backbone = load(name) if missing else None
        for collection in missing:
            row = measure(backbone, options.data / collection, COLLECTIONS[collection])
            content["rows"][f"{name} / {collection}"] = row
            content["date"] = time.strftime("%Y-%m-%d")
            write_json(OUT, content)
            print(name, collection, row, flush=True)
    with written_whole(RESULTS / "structure.md") as part:
        part.write_text(page(content), "utf-8")


def load(name: str) -> cv.Backbone:
    if name.startswith("untrained"):
        torch.manual_seed(0)
        return cv.load(timm.create_model(UNTRAINED, num_classes=0, img_size=SIZE))
    if name.endswith("projected"):
        return cv.cure(cv.load("demo", size=SIZE), method="positional", directions=20)
    return cv.load(find_model(name), size=SIZE)


def measure(backbone: cv.Backbone, folder: Path, metric: str) -> dict[str, Any]:
    """Structure on a few images, and the metric before and after re-ranking."""
    images = spread_evenly(find_images(folder), IMAGES)
    maps = backbone.tokens([one.source for one in images]).map
    table = cv.evaluate(
        [backbone],
        task="retrieval",
        data=folder,
        size=SIZE,
        methods=("chamfer",),
        weights=(1.0,),
    )
    base, *others = table.rows
    after = next(row for row in others if "chamfer" in row.setting)
    return {
        "structure": measure_structure(maps).to_json(),
        "metric": metric,
        "base": base[metric].mean,
        "re-ranked": after[metric].mean,
    }


def changes(content: dict[str, Any]) -> np.ndarray:
    return np.array([row["re-ranked"] - row["base"] for row in content["rows"].values()])


def values_of(content: dict[str, Any], name: str) -> np.ndarray:
    return np.array([row["structure"][name] for row in content["rows"].values()])


def correlate(content: dict[str, Any], name: str) -> tuple[float, float]:
    """Rank correlation of a measure with the change, and its permutation p value."""
    values, change = values_of(content, name), changes(content)
    found = float(spearmanr(values, change).statistic)
    generator = np.random.default_rng(0)
    orders = [generator.permutation(change) for _ in range(PERMUTATIONS)]
    ranks, others = rank(values), np.array([rank(one) for one in orders])
    shuffled = (others - others.mean(1, keepdims=True)) @ (ranks - ranks.mean())
    shuffled /= np.linalg.norm(others - others.mean(1, keepdims=True), axis=1)
    shuffled /= np.linalg.norm(ranks - ranks.mean())
    return found, float(np.mean(np.abs(shuffled) >= abs(found) - 1e-9))


def rank(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def predict_signs(content: dict[str, Any], name: str) -> tuple[int, int]:
    """Rows whose sign is right by a cut and a direction learned on the other collections."""
    names = [key.rsplit(" / ", 1)[1] for key in content["rows"]]
    values, gained = values_of(content, name), changes(content) > 0
    right = 0
    for held_out in COLLECTIONS:
        inside = np.array([one == held_out for one in names])
        cuts = np.sort(values[~inside])
        best = max(
            (
                (np.mean((way * values[~inside] > way * cut) == gained[~inside]), way, cut)
                for cut in (cuts[:-1] + cuts[1:]) / 2
                for way in (1, -1)
            ),
        )
        right += int(np.sum((best[1] * values[inside] > best[1] * best[2]) == gained[inside]))
    return right, len(names)


def page(content: dict[str, Any]) -> str:
    change = changes(content)
    gained = int((change > 0).sum())
    lines = [
        "# Structure of the patches, and what re-ranking by them gains",
        "",
        f"{content['date']}: `{content['command']}`. {content['images']} images of each collection"
        f" at {content['size']} px; re-ranking by symmetric Chamfer over 49 patches, weight 1, no"
        " gate.",
        "",
        "| backbone | collection | smoothness | separation | corners | background | metric | base |"
        " re-ranked | change |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in content["rows"].items():
        name, collection = key.rsplit(" / ", 1)
        cells = [f"{row['structure'][measure]:.2f}" for measure in MEASURES]
        base, after = row["base"], row["re-ranked"]
        cells += [row["metric"], f"{base:.1f}", f"{after:.1f}", f"{after - base:+.1f}"]
        lines.append(f"| {name} | {collection} | {' | '.join(cells)} |")
    lines += ["", "## Does a measure predict the change?", ""]
    lines += [
        f"Rank correlation over the {len(change)} rows (which are not independent: backbones and"
        " collections repeat, so the p values of permutations are too small). Sign: a cut learned"
        f" on two collections, tried on the third; always guessing the commoner sign is right in"
        f" {max(gained, len(change) - gained)} of {len(change)}.",
        "",
        "| measure | rank correlation | p | sign predicted |",
        "|---|---|---|---|",
    ]
    for name in MEASURES:
        (found, p_value), (right, count) = correlate(content, name), predict_signs(content, name)
        lines.append(f"| {name} | {found:+.2f} | {p_value:.3f} | {right} of {count} |")
    notes = OUT.with_suffix(".notes.md")
    if notes.exists():
        lines += ["", notes.read_text("utf-8").rstrip()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
