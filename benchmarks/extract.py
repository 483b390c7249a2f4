"""`clearvit tokens` against a hand-written timm loop: speed ratio and growth of memory.

    python benchmarks/extract.py --images FOLDER

Speed: both write the same float16 tokens of the same photos with the same batch and threads; runs
alternate in one process, the ratio is the median over the rounds. Two loops stand for what people
write: a plain one, and one that reads ahead with torch's DataLoader. Memory: peak resident size of
the command on 200 photos and on 5,000 (links to the same photos).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import torch

import clearvit as cv
from clearvit.images import find_images
from data import DATA, data_path, find_model
from tables import write_tables

BATCH, SHARD = 16, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--counts", type=int, nargs=2, default=[200, 5000], help="images")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small, large = (links(options.images, folder / str(n), n) for n in options.counts)
        speeds = speed(options, small, folder)
        peaks = [peak_memory(options, images, folder) for images in (small, large)]
    text = table(options, speeds, peaks)
    write_tables("extract", text, data=["photos"], models=["demo"])
    print(text)


def links(images: Path, folder: Path, count: int) -> Path:
    """Fill a folder with links to `count` photos, repeating them if there are fewer."""
    folder.mkdir()
    for i, image in enumerate(islice(cycle(find_images(images)), count)):
        source = Path(str(image.source)).resolve()
        (folder / f"{i:05d}{source.suffix}").symlink_to(source)
    return folder


def speed(options: argparse.Namespace, images: Path, folder: Path) -> dict[str, list[float]]:
    """Images per second of each way, one number per round."""
    backbone = cv.load(find_model(options.model), size=options.size)
    network, preprocess = timm_pieces(backbone, options.size)
    paths = [str(image.source) for image in find_images(images)]
    config = cv.TokenConfig(batch=BATCH, shard=SHARD)
    ways: dict[str, Callable[[Path], object]] = {
        "clearvit tokens": lambda out: cv.save_tokens(backbone, images, out=out, config=config),
        "timm, plain loop": lambda out: write(plain(network, preprocess, paths), out),
        "timm, DataLoader": lambda out: write(loader(network, preprocess, paths), out),
    }
    for name, way in ways.items():  # warm the file cache and the allocator
        way(folder / f"warm-{name}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        turn = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in turn:  # another one goes first in every round
            began = time.perf_counter()
            ways[name](folder / f"{number}-{name}")
            seconds[name].append(time.perf_counter() - began)
    return {name: [len(paths) / s for s in values] for name, values in seconds.items()}


def timm_pieces(backbone: cv.Backbone, size: int):
    """The same network and resizing, as somebody would set them up with timm alone."""
    from clearvit.backbones.guarded_timm import timm

    settings = backbone.preprocessing
    transform = timm.data.create_transform(
        input_size=(3, size, size),
        mean=settings.mean,
        std=settings.std,
        interpolation=settings.interpolation,
        crop_pct=1.0,
        crop_mode="squash",
    )
    return backbone.network, transform


def plain(network, preprocess, paths):
    from PIL import Image

    for start in range(0, len(paths), BATCH):
        chunk = paths[start : start + BATCH]
        pixels = torch.stack([preprocess(Image.open(path).convert("RGB")) for path in chunk])
        with torch.inference_mode():
            yield network.forward_features(pixels).half()


class Photos(torch.utils.data.Dataset):
    """Paths as a dataset of tensors."""

    def __init__(self, paths, preprocess):
        self.paths, self.preprocess = paths, preprocess

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        return self.preprocess(Image.open(self.paths[index]).convert("RGB"))


def loader(network, preprocess, paths):
    dataset = Photos(paths, preprocess)
    for pixels in torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=2):
        with torch.inference_mode():
            yield network.forward_features(pixels).half()


def write(parts, out: Path) -> None:
    """Save the same shards that clearvit saves."""
    from safetensors.torch import save_file

    out.mkdir()
    waiting: list[torch.Tensor] = []
    number = 0
    for part in parts:
        waiting.append(part)
        if len(waiting) == SHARD // BATCH:
            save_file({"tokens": torch.cat(waiting)}, out / f"{number:05d}.safetensors")
            waiting, number = [], number + 1
    if waiting:
        save_file({"tokens": torch.cat(waiting)}, out / f"{number:05d}.safetensors")


# VmHWM, because the peak that a process reports of itself includes that of whoever started it.
MEASURED = """
import sys
from clearvit.cli import app
app(sys.argv[1:], standalone_mode=False)
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def peak_memory(options: argparse.Namespace, images: Path, folder: Path) -> float:
    """Peak resident memory of the command in MB; at a small size, where growth would show most."""
    line = [sys.executable, "-c", MEASURED, "tokens", find_model(options.model), str(images)]
    line += ["--json", "--out", str(folder / f"memory-{images.name}"), "--size", "56"]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    result, kilobytes = done.stdout.splitlines()
    assert json.loads(result)["images"] == len(find_images(images))
    return int(kilobytes) / 1024


def table(options: argparse.Namespace, speeds: dict[str, list[float]], peaks: list[float]) -> str:
    ours, (few, many) = speeds["clearvit tokens"], options.counts
    rows = []
    for name, values in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(ours, values, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append(f"| {name} | {statistics.median(values):.1f} | {ratio} |")
    return f"""# Extraction: speed and memory

{few} photos, `{options.model}` at {options.size} px, batch {BATCH}, {options.threads} threads,
{options.rounds} alternating rounds; {time.strftime("%Y-%m-%d")}, {platform.machine()},
{os.cpu_count()} cores, torch {torch.__version__}. Reproduce:
`python benchmarks/extract.py --images FOLDER`

| way | images/s (median) | clearvit / this way (median, range) |
|---|---|---|
{chr(10).join(rows)}

Peak memory of `clearvit tokens` at 56 px: {peaks[0]:.0f} MB for {few} images, {peaks[1]:.0f} MB
for {many:,} ({peaks[1] / peaks[0]:.2f}x).
"""


if __name__ == "__main__":
    main()
