"""What masks of a folder cost beside the extraction of the same tokens, and memory as it grows.

    python benchmarks/segment_folder.py [--size 448] [--images 24] [--rounds 4] [--memory 32 256]

Time: `cv.segment` with a fitted model and `save_tokens` take turns on the same VOC images, in CPU
seconds of one thread; the page of the least certain masks, whose cost does not grow, is left out.
Memory: the peak of a process that segments so many images. Written to
benchmarks/results/segment-folder.json; `segment.py --page` renders it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.shards.config import TokenConfig
from clearvit.shards.extract import save_tokens
from clearvit.stats import bootstrap
from clearvit.timing import time_interleaved
from cure_recipes import peak_memory
from data import DATA, data_path
from evidence import write_result

EXAMPLES = 6


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    split = read_masks(options.data / "voc", split="train")
    backbone = cv.load("demo", size=options.size)
    if options.one:
        images = (list(split.images) * 10)[: options.one]
        copies = [str(path) for path in images]
        with tempfile.TemporaryDirectory() as folder:
            linked = link(copies, Path(folder))
            segment(backbone, linked, options.model, Path(folder) / "masks")
        print(json.dumps({"images": options.one, "peak GB": peak_memory() / 1e6}))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for refine in ("none", "image"):
            model = fit(backbone, split, refine, Path(folder) / refine)
            ratios, seconds = ratios_of(backbone, split, model, options, Path(folder) / refine)
            found = bootstrap(ratios)
            row = {"refine": refine, "ratio": [found.mean, found.low, found.high]}
            rows.append({**row, "CPU s per image": seconds})
            save(options, rows, [])  # what is measured stays if the rest is stopped
            print(rows[-1], flush=True)
        model = Path(folder) / "none" / "fitted"
        memory = [peak_of(count, model, options) for count in options.memory]
    save(options, rows, memory)


def save(options: argparse.Namespace, rows: list[Any], memory: list[Any]) -> None:
    content = {"date": time.strftime("%Y-%m-%d"), "size": options.size, "rounds": options.rounds}
    content |= {"images": options.images, "rows": rows, "memory": memory}
    write_result("segment-folder", content, data=["voc"], models=["demo"])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--memory", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def fit(backbone: cv.Backbone, split: Any, refine: str, folder: Path) -> Path:
    """Fit to a few images, as they are labelled; returns the directory of the model."""
    pairs = [(split.images[i], np.maximum(split.read(i), 0)) for i in range(EXAMPLES)]
    masks = cv.segment(
        backbone,
        [split.images[0]],
        examples=pairs,
        out=folder / "fitted",
        method="mixed",
        scale=1,
        refine=refine,
        page=False,
    )
    return masks.folder


def ratios_of(
    backbone: cv.Backbone, split: Any, model: Path, options: argparse.Namespace, folder: Path
) -> tuple[list[float], float]:
    """CPU time of masks as a ratio to that of the same tokens, round by round; and per image."""
    images = [str(path) for path in split.images[: options.images]]
    plain = cv.segmentation.load_segmenter(model).prepare(backbone)
    number = iter(range(1000))

    def extract() -> None:
        out = folder / f"tokens-{next(number)}"
        save_tokens(plain, images, out=out, config=TokenConfig(batch=8), progress=quiet)

    def masks() -> None:
        segment(backbone, images, model, folder / f"masks-{next(number)}")

    times = time_interleaved([extract, masks], rounds=options.rounds, clock=time.process_time)
    ratios = [two / one for one, two in zip(*times, strict=True)]
    return ratios, float(np.median(times[1])) / options.images


def segment(backbone: cv.Backbone, images: Any, model: Path, out: Path) -> None:
    model_file = model / "segmenter.json"
    cv.segment(backbone, images, model_file=model_file, out=out, page=False, progress=quiet)


def quiet(stage: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


def link(paths: list[str], folder: Path) -> Path:
    """Give every image a name of its own, so that one file may stand for several."""
    (folder / "images").mkdir()
    for number, path in enumerate(paths):
        (folder / "images" / f"{number}{Path(path).suffix}").symlink_to(path)
    return folder / "images"


def peak_of(count: int, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Segment so many images in a process of its own."""
    line = [sys.executable, __file__, "--one", str(count), "--model", str(model)]
    line += ["--size", str(options.size), "--data", str(options.data)]
    found = subprocess.run(line, check=True, capture_output=True, text=True)
    content: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    print(content, flush=True)
    return content


if __name__ == "__main__":
    main()
