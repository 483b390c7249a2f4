"""What masks of a folder cost beside the extraction of the same tokens, and that memory stays.

    python benchmarks/segment_folder.py --work WORK [--model NAME] [--folder 2000]

Ratio: `cv.segment` with a fitted model and `save_tokens` take turns on the same VOC images, in CPU
seconds of one thread; the page of the least certain masks, whose cost does not grow, is left out.
Folder: `clearvit tokens` and `clearvit segment` on so many crops of the images at hand, each in a
process of its own. The second is killed (-9) halfway and started again; its resident memory is
read every few seconds. Each part is saved to benchmarks/results/segment-folder.json and not
measured again; `render.py segment` makes the page. A MODEL is a name or a folder of
CLEARVIT_WEIGHTS.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.shards.config import TokenConfig
from clearvit.shards.extract import save_tokens
from clearvit.stats import bootstrap
from clearvit.timing import time_interleaved
from data import DATA, data_path, find_model
from evidence import read_result, write_result

EXAMPLES = 6
SAMPLE = 2  # seconds between two readings of the memory
FOLDERS = ("voc/JPEGImages", "photos", "imagenet100", "flowers")
USED = ("voc", "photos", "imagenet100", "flowers")


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    name, size = find_model(options.model), options.size
    split = read_masks(options.data / "voc", split="train")
    backbone = cv.load(name, size=size)
    fitted = {
        refine: fit(backbone, split, refine, options.work / f"fitted-{refine}")
        for refine in ("none", "image")
    }
    parts: dict[str, Callable[[], Any]] = {
        "none": lambda: ratio_of(backbone, split, fitted["none"], options),
        "image": lambda: ratio_of(backbone, split, fitted["image"], options),
        "folder": lambda: run_folder(name, fitted["none"] / "segmenter.json", options),
    }
    setting = {"model": options.model, "size": size, "images": options.images}
    setting |= {"rounds": options.rounds, "folder": options.folder}
    found = read_result("segment-folder")
    if found.get("setting") != setting:
        found = {"setting": setting}
    for part, measure in parts.items():
        if part not in found:
            found |= {part: measure(), "date": time.strftime("%Y-%m-%d")}
            write_result("segment-folder", found, data=USED, models=[options.model])
            print(part, found[part], flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--images", type=int, default=16, help="of the ratio")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=int, default=2000, help="images of the whole folder")
    return parser.parse_args()


def fit(backbone: cv.Backbone, split: Any, refine: str, folder: Path) -> Path:
    """Fit to a few images, as they are labelled; returns the directory of the model."""
    pairs = [(split.images[i], np.maximum(split.read(i), 0)) for i in range(EXAMPLES)]
    masks = cv.segment(
        backbone,
        [split.images[0]],
        examples=pairs,
        out=folder,
        method="mixed",
        scale=1,
        refine=refine,
        page=False,
    )
    return masks.folder


def ratio_of(
    backbone: cv.Backbone, split: Any, model: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """CPU time of masks as a ratio to that of the same tokens, round by round; and per image."""
    images = [str(path) for path in split.images[: options.images]]
    plain = cv.segmentation.load_segmenter(model).prepare(backbone)
    with tempfile.TemporaryDirectory() as folder:

        def extract() -> None:
            out = tempfile.mkdtemp(dir=folder) + "/tokens"
            save_tokens(plain, images, out=out, config=TokenConfig(batch=8), progress=quiet)

        def masks() -> None:
            out = tempfile.mkdtemp(dir=folder) + "/masks"
            given = {"model_file": model / "segmenter.json", "page": False, "progress": quiet}
            cv.segment(backbone, images, out=out, **given)

        rounds = options.rounds
        times = time_interleaved([extract, masks], rounds=rounds, clock=time.process_time)
    found = bootstrap([two / one for one, two in zip(*times, strict=True)])
    seconds = float(np.median(times[1])) / options.images
    return {"ratio": [found.mean, found.low, found.high], "CPU s per image": seconds}


def quiet(stage: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


def run_folder(name: str, model_file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Extract tokens of a folder, then segment it in two goes with a kill between them."""
    photos = make_photos(options)
    tokens, masks = options.work / "tokens", options.work / "masks"
    line = [sys.executable, "-m", "clearvit"]
    extract = [*line, "tokens", name, str(photos), "--out", str(tokens)]
    segment = [*line, "segment", name, str(photos), "--out", str(masks)]
    segment += ["--model-file", str(model_file)]
    plain = watch([*extract, "--size", str(options.size)], tokens, options.folder + 1)
    first = watch(segment, masks, options.folder // 2)
    before = {path: path.stat().st_mtime_ns for path in masks.glob("*.png")}
    second = watch(segment, masks, options.folder + 1)
    made = list(masks.glob("*.png"))
    again = sum(path.stat().st_mtime_ns != before[path] for path in made if path in before)
    seconds = first["CPU s"] + second["CPU s"]
    return {
        "tokens": plain,
        "masks": [first, second],
        "masks at the kill": len(before),
        "made again after it": again,
        "masks in all": len(made),
        "readable": sum(is_whole(path) for path in made),
        "ratio": seconds / plain["CPU s"],
    }


def make_photos(options: argparse.Namespace) -> Path:
    """Write crops of random size and place, so that no two images are the same."""
    folder, rng = options.work / "photos", np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    sources = [p for part in FOLDERS for p in sorted((options.data / part).rglob("*.jp*g"))]
    for number in range(options.folder):
        path, image = folder / f"{number:05d}.jpg", Image.open(sources[number % len(sources)])
        width, height = (round(side * rng.uniform(0.6, 1)) for side in image.size)
        x = int(rng.integers(image.width - width + 1))
        y = int(rng.integers(image.height - height + 1))
        if not path.exists():
            image.convert("RGB").crop((x, y, x + width, y + height)).save(path, quality=90)
    return folder


def watch(line: list[str], out: Path, most: int) -> dict[str, Any]:
    """Run a command until it ends or has written so many masks, then kill it.

    Returns:
        CPU seconds of the process, whether it was killed, its exit status, and its memory in
        megabytes beside the masks written until then.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment)
    memory, killed = [], False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        written = sum(1 for _ in out.glob("*.png")) if out.exists() else 0
        memory.append([written, resident(process.pid)])
        if written >= most and not killed:
            os.kill(process.pid, signal.SIGKILL)
            killed = True
        time.sleep(SAMPLE)
    process.returncode = os.waitstatus_to_exitcode(status)  # so that nobody waits for it again
    found = {"CPU s": usage.ru_utime + usage.ru_stime, "killed": killed}
    return {**found, "status": process.returncode, "MB": thin(memory)}


def resident(pid: int) -> int:
    """Memory of a process in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
    return sizes[0] // 1000 if sizes else 0


def thin(memory: list[list[int]], most: int = 40) -> list[list[int]]:
    """Keep some of the readings, the last among them."""
    step = max(1, len(memory) // most)
    return memory[::-1][::step][::-1]


def is_whole(path: Path) -> bool:
    """Whether a mask can be read to its end."""
    try:
        with Image.open(path) as image:
            image.load()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
