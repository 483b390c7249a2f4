"""Do registers help the cure of the demo model, and how many?

    python benchmarks/cure.py --images PHOTOS --labels IMAGENET100 --work DIR [--size 336]

Every 20th photo is kept out of everything and gives the numbers; the rest is cured on, and the cure
holds out a tenth of it for its own early stopping and for the choice of the number of registers.
Resumes: what is in DIR is not computed again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import torch

import clearvit as cv
from cells import percent, ratio_interval
from clearvit.comparison.config import CompareConfig
from clearvit.cures.config import CureConfig
from clearvit.images import find_images
from data import DATA, data_path
from tables import write_tables

HELD_OUT = 20  # every n-th photo
DEFAULT = CureConfig()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--labels", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", type=int, default=336)
    parser.add_argument("--registers", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--epochs", type=int, default=DEFAULT.epochs)
    parser.add_argument("--photos", type=int, help="to cure on; all by default")
    parser.add_argument("--reference", type=int, default=24, help="photos that are measured")
    parser.add_argument("--precision", choices=("auto", "no", "bf16"), default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--test-time", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--views", type=int, default=200, help="of the reference, at most")
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    torch.set_num_threads(options.threads)
    sources = [image.source for image in find_images(options.images)]
    held = sources[::HELD_OUT][: options.reference]
    training = [p for i, p in enumerate(sources) if i % HELD_OUT][: options.photos]
    raw = cv.load("demo", size=options.size)
    models, runs = [raw], []
    for registers in options.registers:
        cured, run = distilled(raw, training, registers, options)
        models.append(cured)
        runs.append(run)
    models += instant(raw, training, options) if options.test_time else []
    comparison = cv.compare(
        models,
        held,
        config=CompareConfig(
            size=options.size,
            limit=len(held),
            reference_images=len(held),
            views=options.views,
            labels=options.labels if options.labels.is_dir() else None,
            labeled_limit=500,
            sampler="whole",  # the reference of the older rows
            cache=options.work / "reference",
        ),
    )
    comparison.save(options.work / "compare")
    text = page(comparison, runs, len(training), options)
    path = write_tables("registers", text, data=("photos", "imagenet100"), models=["demo"])
    print(path.read_text("utf-8"))


def instant(raw: cv.Backbone, training: list, options: argparse.Namespace) -> list[cv.Backbone]:
    """Test-time registers, found on 100 of the photos; nothing where there is nothing to move."""
    folder = options.work / "test-time"
    try:
        if not (folder / "clearvit.json").exists():
            cv.cure(raw, training, out=folder, method="test-time")
    except cv.ModelError as error:
        print(error)
        return []
    return [named(cv.load(f"dir:{folder}", size=options.size), "test-time register")]


def distilled(
    raw: cv.Backbone, training: list, registers: int, options: argparse.Namespace
) -> tuple[cv.Backbone, dict]:
    """One run of the cure; the targets are shared by all."""
    config = dataclasses.replace(
        DEFAULT,
        registers=registers,
        epochs=options.epochs,
        precision=options.precision,
        targets_dir=str(options.work / "targets"),
    )
    folder = options.work / f"registers-{registers}"
    clock = Clock(folder)
    cured = cv.cure(raw, training, out=folder, config=config, progress=clock)
    report = cured.report
    return named(cured, title_of(registers)), {
        "registers": registers,
        "epochs": len(report.epochs) - 1,
        "best": report.best_epoch,
        "before": 1 - report.before,
        "after": 1 - report.after,
        **clock.seconds(),
    }


class Clock:
    """Note how long each phase took, over all resumptions."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.with_suffix(".seconds.json")
        self.spent = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.last = time.monotonic()

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Add the time since the last call."""
        now = time.monotonic()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.last
        self.last = now
        if phase in ("targets", "train"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.spent))
            print(f"{self.path.stem}: {phase} {done}/{total} {note}", flush=True)

    def seconds(self) -> dict[str, float]:
        """Give the time of the two long phases."""
        return {"targets": self.spent.get("targets", 0.0), "train": self.spent.get("train", 0.0)}


def title_of(registers: int) -> str:
    return f"cured, {registers} registers"


def named(backbone: cv.Backbone, name: str) -> cv.Backbone:
    backbone.name = name
    return backbone


def page(comparison: object, runs: list[dict], photos: int, options: argparse.Namespace) -> str:
    yard = comparison.gap
    blocks = ", ".join(map(str, comparison.rule.blocks)) if comparison.rule else "none"
    lines = [
        f"| {row.model} | {row.distance:.4f} | {gap(row, comparison)} |"
        f" {row.class_similarity:.4f} | {percent(row.knn_accuracy, 1)} | {shares(row)} |"
        f" {times(row.extreme_norm)} | {percent(row.equivariance)} | {row.cost_ratio:.2f} |"
        for row in comparison.rows
    ]
    trained = [
        f"| {r['registers']} | {1 - r['before']:.4f} | {1 - r['after']:.4f} | {r['best']} of"
        f" {r['epochs']} | {r['targets'] / 60:.0f} + {r['train'] / 60:.0f} min |"
        for r in runs
    ]
    many = len(runs) > 1
    title = "how many registers?" if many else "the demo model before and after"
    nearest = (
        f" 1-NN: leave-one-out accuracy of class tokens, {comparison.labelled} images."
        if comparison.labelled
        else ""
    )
    return f"""# Cure: {title}

`demo` (DINOv2 ViT-S/14) at {options.size} px, cured on {photos} photos, measured on
{len(comparison.images)} others; {options.epochs} epochs.

| model | distance | gap closed | class token | 1-NN | high-norm | largest | shifted | cost |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Distance: mean of 1 - cosine of the patches, in one forward pass, to the average of the raw model
over {yard.views} views. Gap closed: from the raw model (0 %) to its own 10-view average (100 %,
distance {yard.few:.4f}), with its 95 % interval over photos. Class token: mean cosine to the raw
model's.{nearest}
High-norm: share of patches beyond the raw model's cutoffs in blocks {blocks}, where it has them;
largest: largest norm in the block where it has most, times the median of its image. Shifted: change
of features under a shift by whole patches, as a share of the distance between different contents.
Cost: time of a forward pass. The ten-view average is no row: it runs the raw network ten times,
the high-norm tokens stay in the blocks of each pass as they are, and only what comes out is clean.

Nothing was trained on these photos. Low-rank changes, half-patch views and everything else by
default; one seed each.

## Number of registers, judged by the cure's own held-out photos

| registers | distance to targets before | after | best epoch | time, targets + training |
|---|---|---|---|---|
{chr(10).join(trained)}

The targets are computed once{" and shared by all runs" * many}.
"""


def gap(row: object, comparison: object, part: slice = slice(None)) -> str:
    """Fraction of the gap closed on some images, with its 95 % CI over them."""
    if row is comparison.rows[0]:
        return "0 %"
    raw, own = (torch.tensor(r.distances)[part] for r in (comparison.rows[0], row))
    closed = ratio_interval(raw - own, raw - comparison.gap.few)
    return f"{percent(closed.mean)} ({100 * closed.low:.0f} to {100 * closed.high:.0f})"


def shares(row: object) -> str:
    """Share of high-norm patches, block by block."""
    return (
        "-"
        if row.outlier_fractions is None
        else " / ".join(f"{100 * s:.2f}" for s in row.outlier_fractions) + " %"
    )


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
