"""What pruning costs a CLIP: zero-shot classification of a tiny one, through the same verb.

    python benchmarks/prune_clip.py --work WORK     # goes on where it was stopped

Trains the tiny CLIP of examples/train_tiny_clip.py (four CPU minutes, kept in WORK), prunes its
image tower without training by every scorer, and with training on 600 drawn images without labels
(against the dense image embedding), and classifies 480 other images by names. Differences to the
dense model are paired. `render.py` makes the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from evidence import write_result

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_tiny_clip.py"
KEEPS, SCORERS = (0.9, 0.7, 0.5), ("fuse", "class", "merge", "random")
TRAINED = 0.7
TESTED, LEARNED = 480, 600  # drawn images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000, help="of the training of the CLIP")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, photos = options.work / "clip", options.work / "photos"
    if not (folder / "results.json").exists():
        draw(folder, TESTED, seed=0, steps=options.steps)
    if not (photos / "results.json").exists():
        draw(photos, LEARNED, seed=1, steps=1)  # only its images are used
    dense = cv.load(f"openclip:{folder / 'model'}")
    models = {"dense": dense}
    for keep in KEEPS:
        models |= {f"{keep:g}, {s}": cv.prune(dense, keep=keep, scorer=s) for s in SCORERS}
    images, out = photos / "shapes", options.work / "trained"
    learned = {"keep": TRAINED, "epochs": 4, "batch": 16, "labels": "none"}
    models[f"{TRAINED:g}, trained"] = cv.prune(dense, images, out=out, **learned)
    task = {"task": "zero-shot-classification", "data": folder / "shapes", "batch": 64}
    table = cv.evaluate(list(models.values()), **task)
    rows: list[dict[str, Any]] = [
        {"model": name, "tested": row.num_tested, **dataclasses.asdict(row.values["top-1"])}
        for name, row in zip(models, table.rows, strict=True)
    ]
    write_result("prune_clip", {"steps": options.steps, "rows": rows}, seeds=[0, 1])
    print(table.text())


def draw(out: Path, count: int, *, seed: int, steps: int) -> None:
    """Train a tiny CLIP and draw images with the example."""
    line = [sys.executable, str(EXAMPLE), "--out", str(out), "--images", str(count)]
    subprocess.run([*line, "--seed", str(seed), "--steps", str(steps)], check=True)


if __name__ == "__main__":
    main()
