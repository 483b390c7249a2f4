"""Make the cure that ships for the demo model: `cv.load("demo", cure=True)`.

    python benchmarks/demo_cure.py --work DIR [--images PHOTOS] [--epochs 5]

A cure of `demo` on a folder of photos, a fifth of them at 448 px, the others at 224; the number of
directions of position that the targets lose is chosen on the photos without labels. Resumes: what
is in DIR is not computed again. The result is copied into the package, and a fresh interpreter must
give the tokens that were trained.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import clearvit as cv
from clearvit.backbones.load import SHIPPED_CURE
from clearvit.cures.results.cure_file import FILE
from data import DATA, data_path

LARGEST = 4_000_000  # bytes that may ship
CHECKED = 4  # photos
FRESH = """
import sys, torch, clearvit as cv
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
pixels = load_file(sys.argv[1])["pixels"]
tokens = cv.load("demo", cure=True).tokens(pixels).patches.contiguous()
save_file({"tokens": tokens}, sys.argv[2])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 224, 224, 224, 448])
    parser.add_argument("--directions", default="auto", help="a number, or auto")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    raw = cv.load("demo", size=options.sizes[0])
    count = options.directions if options.directions == "auto" else int(options.directions)
    cured = cv.cure(
        raw,
        options.images,
        out=options.work,
        sizes=options.sizes,
        directions=count,
        epochs=options.epochs,
    )
    print(cured.report)
    made = options.work / FILE
    if made.stat().st_size > LARGEST:
        sys.exit(f"{made} has {made.stat().st_size:,} bytes; at most {LARGEST:,} ship.")
    shutil.copyfile(made, SHIPPED_CURE)
    pixels = next(raw.pixels(sorted(options.images.iterdir())[:CHECKED]))
    worst = (cured.tokens(pixels).patches - fresh_tokens(pixels)).abs().max()
    print(f"{SHIPPED_CURE}: {made.stat().st_size:,} bytes; largest difference {worst:.1e}")
    if not worst < 1e-3:
        sys.exit("the shipped cure does not give the trained tokens.")


def fresh_tokens(pixels: torch.Tensor) -> torch.Tensor:
    """Load the shipped cure in another interpreter and compute tokens there."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "pixels.safetensors"), Path(folder, "tokens.safetensors")
        save_file({"pixels": pixels}, given)
        subprocess.run([sys.executable, "-c", FRESH, given, found], check=True)
        return load_file(found)["tokens"]


if __name__ == "__main__":
    main()
