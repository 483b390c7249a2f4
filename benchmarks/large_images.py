"""Large images: prune, or show the dense model a smaller image? At equal MACs, without training.

    python benchmarks/large_images.py --work WORK [--photos 24] [--train 60 --test 60]
    python benchmarks/large_images.py --page      # docs/results/large_images.md from the JSON

The demo model at 518 px. `fuse` and `merge` merge before blocks 3, 6, 9; the control is the dense
model on a smaller image, its map upsampled: all with as many MACs. Cosine to the dense class token
and map on photos/, mean IoU of a linear probe on voc/ (fitted and tested with the same model), and
interleaved times of one image.
Finished rows stay in WORK. Writes benchmarks/results/large-images.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.evaluation.evaluation_table import Result, resample_metrics
from clearvit.files import write_json
from clearvit.precision import autocast, uses_bf16
from clearvit.probes.features import extract_features, select_evenly, use_whole_image
from clearvit.probes.metrics import segmentation_metrics
from clearvit.probes.segmentation import measure_whole
from clearvit.probes.sgd import train_fast_head
from clearvit.pruning import macs
from clearvit.stats import bootstrap
from clearvit.timing import Spread, speed_ratios, time_interleaved
from data import DATA, data_path
from evidence import write_result
from render import render

SIZE = 518
GAINS = (1.3, 1.8)  # in MACs
METHODS = ("fuse", "merge", "smaller image")
POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
METRIC = "mIoU of 7"
Row = tuple[str, float]  # method, gain


def main() -> None:
    options = parsed()
    if not options.page:
        measure(options)
    print(render("large_images").read_text("utf-8"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--train", type=int, default=60, help="labelled images of the probe")
    parser.add_argument("--test", type=int, default=60)
    every = [key_of((name, gain)) for gain in GAINS for name in METHODS]
    parser.add_argument("--segmented", nargs="*", default=every, help="rows with mIoU: 'fuse, 1.8'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--data", type=data_path, default=DATA)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    dense = use_whole_image(cv.load("demo", size=SIZE))
    models = {(name, gain): model_of(dense, name, gain) for gain in GAINS for name in METHODS}
    cosines = once(options.work / "cosines.json", partial(cosines_of, dense, models, options))
    times = once(options.work / "times.json", partial(times_of, dense, models, options))
    everything: dict[Row, cv.Backbone] = {("dense", 1.0): dense, **models}
    counts = {}
    for row, model in everything.items():
        if not options.segmented or key_of(row) not in ("dense, 1", *options.segmented):
            continue
        path = options.work / f"counts-{row[0].replace(' ', '-')}-{row[1]:g}.json"
        counts[row] = np.array(once(path, partial(counts_of, model, options)))
    rows = [
        summarize(row, model, dense, cosines, times, counts, options)
        for row, model in everything.items()
    ]
    content = {"date": time.strftime("%Y-%m-%d"), "photos": options.photos}
    content |= {"train": options.train, "test": options.test, "rounds": options.rounds}
    content |= {"threads": options.threads, "load": times["load"]}
    command = f"--photos {options.photos} --rounds {options.rounds}"
    if options.segmented:
        command += f" --train {options.train} --test {options.test} --segmented "
        command += " ".join(f"'{name}'" for name in options.segmented)
    else:
        command += " --segmented"
    content |= {"command": f"python benchmarks/large_images.py --work WORK {command}"}
    content |= {"machine": f"{platform.machine()}, torch {torch.__version__}", "rows": rows}
    used = ("photos", "voc")
    write_result("large-images", content, data=used, seeds=[0], models=["demo"])


def once(path: Path, compute: Callable[[], Any]) -> Any:
    """Compute something, or read what an earlier call computed."""
    if not path.exists():
        start = time.process_time()
        write_json(path, {"value": compute()})
        print(f"{path.name}: {time.process_time() - start:.0f} CPU seconds", flush=True)
    return json.loads(path.read_text())["value"]


def model_of(dense: cv.Backbone, name: str, gain: float) -> cv.Backbone:
    """The model with as many times fewer MACs, by bisection of what it keeps."""
    if name == "smaller image":
        sides = range(14 * 10, SIZE, 14)
        whole = macs(dense).dense
        best = min(sides, key=lambda side: abs(whole / macs(dense, side).dense - gain))
        return dense.resized(best)
    low, high = 0.26, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        reached = macs(cv.prune(dense, keep=middle, scorer=name)).gain
        low, high = (low, middle) if reached < gain else (middle, high)
    return cv.prune(dense, keep=low, scorer=name)


@torch.inference_mode()
def cosines_of(
    dense: cv.Backbone, models: dict[Row, cv.Backbone], options: argparse.Namespace
) -> dict[str, list[list[float]]]:
    """Cosine of class token and map to the dense model's, for every photo."""
    photos = sorted((options.data / "photos").glob("*.jpg"))
    chosen = [photos[index] for index in select_evenly(len(photos), options.photos)]
    found: dict[str, list[list[float]]] = {key_of(row): [] for row in models}
    with autocast(dense.device, uses_bf16(dense.device, "auto")):
        for photo in chosen:
            goal = dense.forward(next(iter(dense.pixels([photo]))))
            for row, model in models.items():
                tokens = model.forward(next(iter(model.pixels([photo]))))
                grid = tokens.map.float()
                if tokens.grid != goal.grid:
                    grid = F.interpolate(grid, goal.grid, mode="bilinear")
                alike = F.cosine_similarity(grid, goal.map.float(), dim=1).mean()
                token = F.cosine_similarity(tokens.cls.float(), goal.cls.float()).mean()
                found[key_of(row)].append([float(token), float(alike)])
    return found


@torch.inference_mode()
def times_of(
    dense: cv.Backbone, models: dict[Row, cv.Backbone], options: argparse.Namespace
) -> dict[str, Any]:
    """How many times as fast as dense one image is, round by round, in float32."""
    inputs = {row: torch.randn(1, 3, *model.fitting_size()) for row, model in models.items()}
    passes = [partial(dense.forward, torch.randn(1, 3, SIZE, SIZE))]
    passes += [partial(model.forward, inputs[row]) for row, model in models.items()]
    load = os.getloadavg()[0]
    seconds = time_interleaved(passes, rounds=options.rounds, clock=time.process_time)
    ratios = {
        key_of(row): speed_ratios(seconds[0], own)
        for row, own in zip(models, seconds[1:], strict=True)
    }
    return {"load": load, **ratios}


def counts_of(model: cv.Backbone, options: argparse.Namespace) -> list[list[float]]:
    """Counts of a linear probe on test images, fitted with the same model."""
    train, test = (read_masks(options.data / "voc", split=name) for name in ("train", "val"))
    train = train.select(select_evenly(len(train), options.train))
    test = test.select(select_evenly(len(test), options.test))
    model = model.in_precision("auto")
    with extract_features(model, train) as features:
        head = train_fast_head(features, train, range(len(train)))
    with extract_features(model, test) as features:
        (found,) = measure_whole([head], features, test)
    counts: list[list[float]] = found.tolist()
    return counts


def summarize(
    row: Row,
    model: cv.Backbone,
    dense: cv.Backbone,
    cosines: dict[str, list[list[float]]],
    times: dict[str, Any],
    counts: dict[Row, np.ndarray],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One line of the table: means, and paired differences from `fuse` with as many MACs."""
    classes = read_masks(options.data / "voc", split="val").classes
    subset = tuple(classes.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=tuple(classes), subset=subset)

    def metric(which: Row) -> Any:
        return resample_metrics(Result("", 0, [counts[which]], summary), seed=0)[METRIC]

    name, gain = row
    base, rival = ("dense", 1.0), ("fuse", gain)
    found: dict[str, Any] = {"name": name}
    if row in counts:
        found["mIoU"] = float(metric(row).values.mean())
    if row == base:
        return {**found, "gain": 1.0, "setting": f"{SIZE} px"}
    if row in counts:
        found["mIoU minus dense"] = listed((metric(row) - metric(base)).interval())
    if row in counts and rival in counts:
        found["mIoU minus fuse"] = listed((metric(row) - metric(rival)).interval())
    own, other = (np.array(cosines[key_of(one)]) for one in (row, rival))
    spread = Spread.of(times[key_of(row)])
    side = model.fitting_size()[0]
    smaller = name == "smaller image"
    return {
        **found,
        "gain": macs(dense).dense / macs(model).total,
        "setting": f"{side} px" if smaller else f"keep {model.plan.keep[0]:.2f}",
        "class token": float(own[:, 0].mean()),
        "map": float(own[:, 1].mean()),
        "map minus fuse": listed(bootstrap(own[:, 1] - other[:, 1])),
        "speed": [spread.median, spread.low, spread.high],
    }


def listed(interval: Any) -> list[float]:
    return [interval.mean, interval.low, interval.high]


def key_of(row: Row) -> str:
    return f"{row[0]}, {row[1]:g}"


if __name__ == "__main__":
    main()
