"""Ten epochs with targets kept on disk against ten with targets computed anew in every epoch.

    python benchmarks/targets.py --images PHOTOS

Same photos, views, steps and weights; whole runs of `cv.cure` in turn, in one process, the order
exchanged from round to round.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import clearvit as cv
from clearvit.images import find_images
from data import DATA, data_path
from tables import write_tables

EPOCHS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--photos", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    torch.set_num_threads(options.threads)
    photos = [image.source for image in find_images(options.images)[: options.photos]]
    backbone = cv.load("demo", size=options.size)
    ratios = []
    for number in range(options.rounds):
        ways = [None, 0.0] if number % 2 == 0 else [0.0, None]
        spent = {way: seconds(backbone, photos, way) for way in ways}
        ratios.append(spent[None] / spent[0.0])
        print(f"kept {spent[None]:.0f} s, anew {spent[0.0]:.0f} s: {ratios[-1]:.2f}", flush=True)
    path = write_tables("targets", page(ratios, options), data=["photos"], models=["demo"])
    print(path.read_text("utf-8"))


def seconds(backbone: cv.Backbone, photos: list, cache: float | None) -> float:
    config = cv.CureConfig(epochs=EPOCHS, target_cache_gb=cache, patience=None)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        cv.cure(backbone, photos, out=Path(folder) / "out", config=config)
        return time.perf_counter() - start


def page(ratios: list[float], options: argparse.Namespace) -> str:
    return f"""# Targets on disk

`demo` at {options.size} px, {options.photos} photos, 10 views, {EPOCHS} epochs, default weights
unlocked; {time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores, torch
{torch.__version__}. Reproduce: `python benchmarks/targets.py --images PHOTOS`

Time of a whole run with targets kept on disk, as a share of one that computes them anew in every
epoch: **{statistics.median(ratios):.2f}** (median of {len(ratios)} rounds in turn,
{min(ratios):.2f} to {max(ratios):.2f}).
"""


if __name__ == "__main__":
    main()
