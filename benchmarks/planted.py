"""Artifacts of a known kind, cured: how much of the error at their places is gone?

    python benchmarks/planted.py --images PHOTOS

Base: the first six blocks of the demo model at 224 px, artifacts planted in the output of block 4
on 2 % of the patches; two blocks are left to repair them. Truth: the tokens of the base without
artifacts, averaged over the same ten views. Error: 1 - cosine to the truth at the planted places of
held-out photos, in one forward pass; for the averaged tokens, at the same places.

High-norm artifacts come in two forms: added to the patch, and instead of it. In the second all
artifacts of a picture are one and the same vector, so nothing behind them can tell them apart.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import clearvit as cv
from clearvit.images import find_images
from clearvit.testing.planted import Kind

DATA = Path(os.environ.get("CLEARVIT_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULT = Path(__file__).parents[1] / "docs" / "results" / "planted.md"
DEPTH, BLOCK = 6, 3
ROWS: tuple[tuple[Kind, bool], ...] = (
    ("high-norm", False),
    ("high-norm", True),
    ("low-norm", True),
    ("positional", True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=DATA / "photos")
    parser.add_argument("--photos", type=int, default=60)
    parser.add_argument("--held", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-4)
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    torch.set_num_threads(os.cpu_count() or 1)
    pictures = find_images(options.images)
    held, training = pictures[::20][: options.held], [p for i, p in enumerate(pictures) if i % 20]
    chosen = [p.source for p in training[: options.photos]]
    base = shortened(cv.load("demo", size=224))
    rows = [row(base, what, chosen, [p.source for p in held], options) for what in ROWS]
    RESULT.write_text(page(rows, options))
    print(RESULT.read_text())


def shortened(backbone: cv.Backbone) -> cv.Backbone:
    """The first blocks of a backbone."""
    network = copy.deepcopy(backbone.network)
    network.blocks = nn.Sequential(*network.blocks[:DEPTH])
    short = copy.copy(backbone)
    short.network, short.depth = network, DEPTH
    arguments = {**backbone.blueprint.arguments, "depth": DEPTH}
    short.blueprint = type(backbone.blueprint)(backbone.blueprint.architecture, arguments)
    return short


def row(
    base: cv.Backbone, what: tuple[Kind, bool], training: list, held: list, options: object
) -> dict:
    """Errors of one kind of artifact: as it is, averaged, cured."""
    kind, lossy = what
    sick, mask = cv.testing.planted(base, kind, 0.02, block=BLOCK, until=BLOCK, lossy=lossy)
    config = cv.CureConfig(epochs=options.epochs, lr=options.lr, patience=None)
    with tempfile.TemporaryDirectory() as folder:
        cured = cv.cure(sick, training, out=Path(folder) / "out", config=config)
    errors: dict[str, list[float]] = {"planted": [], "averaged": [], "cured": [], "clean": []}
    for photo in held:
        truth = cv.denoise(base, photo).patches[0]
        places = mask(photo)[0]
        found = {
            "planted": sick.tokens(photo),
            "averaged": cv.denoise(sick, photo),
            "cured": cured.tokens(photo),
            "clean": base.tokens(photo),
        }
        for name, tokens in found.items():
            errors[name].append(error(tokens.patches[0], truth, places))
    means = {name: sum(values) / len(values) for name, values in errors.items()}
    if kind == "high-norm":
        kind += ", instead of the patch" if lossy else ", added to the patch"
    print(kind, means, flush=True)
    return {"kind": kind, **means}


def error(tokens: Tensor, truth: Tensor, places: Tensor) -> float:
    return float((1 - torch.cosine_similarity(tokens[places], truth[places], dim=-1)).mean())


def page(rows: list[dict], options: argparse.Namespace) -> str:
    lines = [
        f"| {r['kind']} | {r['planted']:.3f} | {r['averaged']:.3f} ({gone(r, 'averaged')}) |"
        f" {r['cured']:.3f} ({gone(r, 'cured')}) | {r['clean']:.3f} |"
        for r in rows
    ]
    return f"""# Planted artifacts, cured

First six blocks of `demo` at 224 px, artifacts planted in block 4 on 2 % of the patches; cured on
{options.photos} photos, {options.epochs} epochs, learning rate {options.lr:g}, else by default;
{options.held} other photos for the numbers; {time.strftime("%Y-%m-%d")}, {platform.machine()},
{os.cpu_count()} cores, torch {torch.__version__}. Reproduce:
`python benchmarks/planted.py --images PHOTOS --epochs {options.epochs} --held {options.held}`

Mean of 1 - cosine to the truth at the planted places. The truth is the average of the base without
artifacts over ten views; "clean" is the base in one forward pass. In brackets: how much of the
error is gone.

| artifacts | planted | averaged over 10 views | cured, one pass | clean, one pass |
|---|---|---|---|---|
{chr(10).join(lines)}

Artifacts that stand instead of the patch are one and the same vector at all places of a picture: no
block behind them can tell them apart, so one pass cannot give each place its own tokens back. The
average can, for it sees the same content from other views. Artifacts that are added to the patch
leave its content where it was, so training could take them off again; a run of this length only
begins to.
"""


def gone(row: dict, name: str) -> str:
    return f"{100 * (1 - row[name] / row['planted']):.0f} %"


if __name__ == "__main__":
    main()
