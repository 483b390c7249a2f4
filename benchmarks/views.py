"""How close do n views come to the average of all views? Our sampler against the official one.

    python benchmarks/views.py --images PHOTOS [--size 224 518] [--work DIR]

The tokens of every view within reach are computed once per photo; then each sampler and seed picks
its views among them. Distance: 1 - cosine per patch to the average of all views, mean over patches
and photos. At 224 px there are 50 views and it takes minutes, at 518 px 338 and hours: with
`--work` every photo's numbers are kept there, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import clearvit as cv
from cells import ratio_interval
from clearvit.files import write_json
from clearvit.images import find_images
from clearvit.views import Views, all_views, apply_view, lattice_views
from clearvit.views import official_views as official
from clearvit.views.gathering import axis_weights
from clearvit.views.shifting import white_of
from data import DATA, data_path
from tables import write_tables

COUNTS = (4, 6, 10, 20)
SAMPLERS = {"official": official, "lattice": partial(lattice_views, phases=1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--size", type=int, nargs="+", default=[224])
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--work", type=Path, help="keep the numbers of every photo here")
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    sources = find_images(options.images)
    chosen = sources[:: max(1, len(sources) // options.photos)][: options.photos]
    sections = []
    for size in options.size:
        backbone = cv.load("demo", size=size)
        rows = [kept(backbone, str(p.source), size, options) for p in chosen]
        sections.append(section(size, torch.stack(rows), options.seeds))
    path = write_tables("views", page(options, sections), data=["photos"], models=["demo"])
    print(path.read_text("utf-8"))


def kept(backbone: cv.Backbone, photo: str, size: int, options: argparse.Namespace) -> Tensor:
    """`measured`, from the work directory when it is there."""
    if options.work is None:
        return measured(backbone, photo, options.seeds)
    file = options.work / f"{size}-{options.seeds}-{Path(photo).stem}.json"
    if not file.exists():
        write_json(file, measured(backbone, photo, options.seeds).tolist())
        print(file.name, flush=True)
    return torch.tensor(json.loads(file.read_text()))


def measured(backbone: cv.Backbone, photo: str, seeds: int) -> Tensor:
    """Distances of one photo, (samplers, counts, seeds, 3): all patches, border ring, inside."""
    pixels = next(backbone.pixels(photo))
    grid = (pixels.shape[2] // backbone.patch[0], pixels.shape[3] // backbone.patch[1])
    every = all_views(grid, patch=backbone.patch)
    tokens, seen = view_tokens(backbone, pixels, every, grid)
    number = {key(every, i): i for i in range(len(every))}
    whole = tokens.sum(0) / seen.sum(0)[..., None]
    ring = torch.ones(grid, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    result = torch.empty(len(SAMPLERS), len(COUNTS), seeds, 3)
    for s, sampler in enumerate(SAMPLERS.values()):
        for c, count in enumerate(COUNTS):
            for seed in range(seeds):
                views = sampler(grid, count, patch=backbone.patch, seed=seed)
                picked = [number[key(views, i)] for i in range(len(views))]
                mean = tokens[picked].sum(0) / seen[picked].sum(0)[..., None]
                distance = 1 - torch.cosine_similarity(mean, whole, dim=-1)
                result[s, c, seed] = torch.stack(
                    [distance.mean(), distance[ring].mean(), distance[~ring].mean()]
                )
    return result


def view_tokens(
    backbone: cv.Backbone, pixels: Tensor, views: Views, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Tokens of every view at their place in the picture, (V, H, W, C), and where they are."""
    tokens = torch.zeros(len(views), *grid, backbone.width)
    seen = torch.zeros(len(views), *grid)
    white = white_of(backbone.preprocessing)
    for i, ((dy, dx), flip) in enumerate(views.pairs()):
        view = apply_view(pixels, (dy, dx), flip, white)
        features = backbone.tokens(view).patches[0].unflatten(0, grid)
        rows = axis_weights(grid[0], grid[0], patch=backbone.patch[0], offset=dy, flip=False)
        columns = axis_weights(grid[1], grid[1], patch=backbone.patch[1], offset=dx, flip=flip)
        tokens[i] = torch.einsum("gi,ijc,hj->ghc", rows, features, columns)
        seen[i] = torch.outer(rows.sum(1), columns.sum(1))
    return tokens, seen


def key(views: Views, index: int) -> tuple[int, int, bool]:
    dy, dx = views.offsets[index].tolist()
    return dy, dx, bool(views.flips[index])


def section(size: int, rows: Tensor, seeds: int) -> str:
    """Rows (photos, samplers, counts, seeds, 3)."""
    lines = []
    for c, count in enumerate(COUNTS):
        official_, ours = rows[:, 0, c], rows[:, 1, c]
        ratio = ratio_interval(ours[..., 0].mean(1), official_[..., 0].mean(1))
        means = [x.mean((0, 1)).tolist() for x in (official_, ours)]
        cells = " | ".join(f"{m[0]:.4f} (border {m[1]:.4f}, inside {m[2]:.4f})" for m in means)
        lines.append(
            f"| {count} | {cells} | {ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) |"
        )
    six, ten = rows[:, 1, COUNTS.index(6), :, 0].mean(), rows[:, 0, COUNTS.index(10), :, 0].mean()
    return f"""## {size} px

{len(rows)} photos, {seeds} seeds.

| views | official | lattice | lattice / official |
|---|---|---|---|
{chr(10).join(lines)}

Six lattice views: {six:.4f}; ten official views: {ten:.4f}.
"""


def page(options: argparse.Namespace, sections: list[str]) -> str:
    sizes = " ".join(str(size) for size in options.size)
    return f"""# Views: how close to the average of all views

`demo`; {time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores,
torch {torch.__version__}. Reproduce:
`python benchmarks/views.py --images PHOTOS --size {sizes}`

Mean over patches of 1 - cosine to the average of all views; ratio with its 95 % interval over
photos. Distance to the average of all views is not task accuracy.

{chr(10).join(sections)}"""


if __name__ == "__main__":
    main()
