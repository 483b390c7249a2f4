"""How much of the gain of ten fine views does a head give in one forward pass?

    python benchmarks/fine_head.py --work WORK [--model demo] [--size 224] [--half report|choose]
    python benchmarks/fine_head.py --work WORK --cure demo-cured --labelled 200 --photos 160

The head is fitted to the photos of DATA by `cv.cure(method="fine")`, without labels; then kNN and
a linear probe segment voc/ (all labelled images) from the tokens of each row. Settings were chosen
on every other test image (`--half choose`); the page has the others. All rows have the same images
and, for kNN, the same number of labelled patches in the bank. Differences are paired; intervals
resample test images. WORK keeps tokens, targets, the head and finished rows: a run that was stopped
goes on, and `--without-head` makes the other rows first. With `--cure` the head goes onto a cured
model, as `clearvit cure --scale 2` does it, and is compared with ten fine views of the raw one.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import clearvit as cv
from clearvit.backbones.output import smooth_grid
from clearvit.datasets.masks import read_masks
from clearvit.files import written_whole
from clearvit.images import find_images
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.knn import fit_knn
from clearvit.probes.metrics import segmentation_metrics
from clearvit.probes.segmentation import collect_patches, measure_whole
from clearvit.probes.sgd import train_fast_head
from clearvit.stats import quantile_interval, resample
from clearvit.timing import time_interleaved
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoise import views_for
from clearvit.views.gathering import Gatherer
from clearvit.views.shifting import apply_view, white_of
from data import DATA, data_path, find_model
from tables import write_tables

POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
VIEWS, RESAMPLES, ROUNDS = 10, 2000, 30
PER_IMAGE = 128  # labelled patches of an image in the bank of kNN
ROWS = {
    "raw": "1",
    "raw, upsampled bilinearly": "1",
    "raw, blurred 3 x 3": "1",
    "ten views, scale 1": "10",
    "ten views, scale 2": "10",
    "head, scale 2": "1",
}
FULL, HEAD = "ten views, scale 2", "head, scale 2"
CURED_ROWS = {
    "raw": "1",
    "raw, blurred 3 x 3": "1",
    FULL: "10",
    "cured": "1",
    "cured, blurred 3 x 3": "1",
    f"cured, {HEAD}": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--half", choices=("report", "choose"), default="report")
    parser.add_argument("--without-head", action="store_true")
    parser.add_argument("--cure", help="a cured copy of the model, for cv.load; its head is judged")
    parser.add_argument("--labelled", type=int, help="images for the probes; all by default")
    parser.add_argument("--photos", type=int, help="that the head is fitted to; all by default")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    backbone = cv.load(find_model(options.model), size=options.size)
    models = {"raw": backbone}
    if options.cure:
        models["cured"] = cv.load(find_model(options.cure), size=options.size)
    if options.without_head:
        measured(models, options)
        return
    photos = find_images(options.data / "photos")
    models["head"] = fine = cv.cure(
        models.get("cured", backbone),
        [photos[i].source for i in select_evenly(len(photos), options.photos or len(photos))],
        method="fine",
        out=options.work / "head",
        size=options.size,
        views=VIEWS,
        precision=options.precision,
    )
    print(fine.report, flush=True)
    counts = measured(models, options)
    seconds = timed(backbone, fine, options.size)
    page = written(counts, seconds, fine, options)
    if options.half == "report":
        used, name = ("photos", "voc"), "fine_head_cured" if options.cure else "fine_head"
        write_tables(name, page, data=used, seeds=[0], models=[options.cure or options.model])
    print(page)


# --- tokens -------------------------------------------------------------------------------------


class Maps:
    """Tokens (I, H, W, C) as the probes read them."""

    def __init__(self, tokens: Tensor, size: int) -> None:
        self.all, self.size = tokens, (size, size)
        self.grid = (tokens.shape[1], tokens.shape[2])

    def patches(self, indices: list[int]) -> Tensor:
        """Give patches of some images, (B, N, C)."""
        return self.all[indices].flatten(1, 2).float()

    def map(self, indices: list[int], *, cls: bool = False) -> Tensor:
        """Give maps of some images, (B, C, H, W)."""
        return self.all[indices].permute(0, 3, 1, 2).float()


def view_tokens(
    backbone: cv.Backbone, split: Any, options: argparse.Namespace
) -> dict[str, Tensor]:
    """Tokens of one view and of ten, gathered at scale 1 and 2, (I, H, W, C) half; kept in WORK."""
    file = options.work / f"{split.name}-{len(split)}.safetensors"
    if file.exists():
        return load_file(file)
    whole = use_whole_image(backbone)
    white, parts = white_of(whole.preprocessing), {"raw": [], "coarse": [], "fine": []}
    half = torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16")
    for number, path in enumerate(split.images):
        pixels = next(whole.pixels([path]))
        grid = whole.grid_of((pixels.shape[2], pixels.shape[3]))
        views = views_for(whole, pixels, DenoiseConfig(views=VIEWS, scale=2, seed=number))
        shown = torch.cat(
            [apply_view(pixels, offset, flip, white) for offset, flip in views.pairs()]
        )
        with torch.no_grad(), half:
            tokens = whole.forward(shown).patches.float()[None].unflatten(2, grid)
        for name, scale in (("coarse", 1), ("fine", 2)):
            gatherer = Gatherer(grid, patch=whole.patch, scale=scale)
            gatherer.add(tokens, views)
            parts[name].append(gatherer.result().map[0].half())
        parts["raw"].append(whole.tokens(pixels).patches[0].unflatten(0, grid).half())
    found = {name: torch.stack(some) for name, some in parts.items()}
    with written_whole(file) as temporary:
        save_file(found, temporary)
    return found


def final_tokens(backbone: cv.Backbone, split: Any) -> Tensor:
    whole = use_whole_image(backbone)
    parts = [whole.tokens([path]) for path in split.images]
    return torch.stack([t.patches[0].unflatten(0, t.grid).half() for t in parts])


def upsampled(maps: Tensor) -> Tensor:
    channels = maps.permute(0, 3, 1, 2).float()
    return F.interpolate(channels, scale_factor=2, mode="bilinear").permute(0, 2, 3, 1).half()


def blurred(maps: Tensor) -> Tensor:
    grid = (maps.shape[1], maps.shape[2])
    return smooth_grid(maps.flatten(1, 2).float(), grid).unflatten(1, grid).half()


def row_tokens(row: str, models: dict[str, cv.Backbone], split: Any, options: Any) -> Tensor:
    if row.endswith(HEAD):
        return final_tokens(models["head"], split)
    if row.startswith("cured"):
        tokens = final_tokens(models["cured"], split)
    else:
        seen = view_tokens(models["raw"], split, options)
        if row.startswith("ten views"):
            return seen["coarse" if row.endswith("1") else "fine"]
        tokens = seen["raw"]
    tokens = blurred(tokens) if "blurred" in row else tokens
    return upsampled(tokens) if "upsampled" in row else tokens


# --- tasks --------------------------------------------------------------------------------------


def measured(
    models: dict[str, cv.Backbone], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Counts of each test image (V, 3 K) by task and row."""
    train, test = (read_masks(options.data / "voc", split=name) for name in ("train", "val"))
    train = train.select(select_evenly(len(train), options.labelled or len(train)))
    test = test.select(list(range(0 if options.half == "choose" else 1, len(test), 2)))
    counts: dict[str, dict[str, Any]] = {"kNN": {}, "linear": {}}
    for row in rows_of(options):
        if row.endswith(HEAD) and "head" not in models:
            continue
        model = f"-{models['head'].fingerprint()[:8]}" if row.endswith(HEAD) else ""
        name = f"{options.half}-{len(train)}-{row.replace(' ', '-')}{model}"
        file = options.work / f"{name}.safetensors"
        if not file.exists():
            tokens = [row_tokens(row, models, split, options) for split in (train, test)]
            with written_whole(file) as temporary:
                save_file(row_counts(tokens, (train, test), options.size), temporary)
        for task, found in load_file(file).items():
            counts[task][row] = found.numpy()
            print(row, task, f"{miou(counts[task][row].sum(0), train.classes):.1f}", flush=True)
    counts["classes"] = dict.fromkeys(train.classes)
    return counts


def rows_of(options: argparse.Namespace) -> dict[str, str]:
    """Rows of the table, with their passes."""
    return CURED_ROWS if options.cure else ROWS


def row_counts(tokens: list[Tensor], splits: tuple[Any, Any], size: int) -> dict[str, Tensor]:
    """Fit both probes on the tokens of one split, count on those of the other."""
    (train, test), every = splits, list(range(len(splits[0])))
    learned, tested = Maps(tokens[0], size), Maps(tokens[1], size)
    limit = PER_IMAGE * len(train)
    patches, labels = collect_patches(learned, train, every, limit=limit)  # type: ignore[arg-type]
    scorers = {
        "kNN": fit_knn(patches, labels, k=30, temperature=0.02),
        "linear": train_fast_head(learned, train, every),  # type: ignore[arg-type]
    }
    found = measure_whole(list(scorers.values()), tested, test)  # type: ignore[arg-type]
    return {task: torch.from_numpy(rows) for task, rows in zip(scorers, found, strict=True)}


def miou(sums: Any, classes: Any) -> Any:
    """MIoU of the populated classes for sums of rows, (…, 3 K)."""
    names = tuple(classes)
    subset = [names.index(name) for name in POPULATED]
    return segmentation_metrics(sums, names, subset)[f"mIoU of {len(POPULATED)}"]


def timed(backbone: cv.Backbone, fine: cv.Backbone, size: int) -> list[list[float]]:
    pixels = torch.randn(4, 3, *backbone.fitting_size(size))
    with torch.no_grad():
        return time_interleaved(
            [partial(backbone.forward, pixels), partial(fine.forward, pixels)], rounds=ROUNDS
        )


# --- the page -----------------------------------------------------------------------------------


def table(counts: dict[str, Any], classes: Any, rows: dict[str, str]) -> str:
    """Scores, paired differences to raw, and what part of the full gain that is."""
    images = len(counts["raw"])
    samples = np.concatenate(list(resample(images, RESAMPLES, 0)))
    scores = {row: miou(samples @ counts[row], classes) for row in rows}
    means = {row: float(miou(counts[row].sum(0), classes)) for row in rows}
    lines = []
    for row, passes in rows.items():
        gain = scores[row] - scores["raw"]
        low, high = quantile_interval(gain)
        mean = means[row] - means["raw"]
        apart = "-" if row == "raw" else f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        part = "-"
        if row not in ("raw", FULL):
            part_low, part_high = quantile_interval(gain / (scores[FULL] - scores["raw"]))
            part = f"{100 * mean / (means[FULL] - means['raw']):.0f} %"
            part += f" ({100 * part_low:.0f} to {100 * part_high:.0f})"
        lines.append(f"| {row} | {passes} | {means[row]:.1f} | {apart} | {part} |")
    names = ("tokens", "passes", "mIoU of 7", "minus raw", "of the gain of ten fine views")
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *lines])


def written(
    counts: dict[str, Any], seconds: list[list[float]], fine: Any, options: argparse.Namespace
) -> str:
    classes = tuple(counts["classes"])
    ratios = np.array(seconds[1]) / np.array(seconds[0])
    low, high = np.quantile(ratios, (0.25, 0.75))
    rows = rows_of(options)
    tables = "\n\n".join(
        f"## {task}\n\n{table(counts[task], classes, rows)}" for task in ("kNN", "linear")
    )
    images = len(counts["kNN"]["raw"])
    command = f"--model {options.model} --size {options.size}"
    title, what = "A head for fine tokens: one pass against ten views", "the model as it is"
    if options.cure:
        command += f" --cure {options.cure} --labelled {options.labelled} --photos {options.photos}"
        title, what = "A cure and a head: one pass against ten views", f"`{options.cure}`"
    return HEAD_OF_PAGE.format(
        title=title,
        command=command,
        model=options.model,
        what=what,
        labelled=f"{options.labelled or 'all'} labelled images",
        size=options.size,
        date=time.strftime("%Y-%m-%d"),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        images=images,
        report=fine.report,
        ratio=f"{np.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} rounds,"
        f" {options.threads} thread{'s' * (options.threads > 1)})",
        tables=tables,
        read=READ,
    )


READ = """Read: blurring alone is the control for kNN, upsampling alone for both.
"""
HEAD_OF_PAGE = """# {title}

`{model}` at {size} px; {date}, {machine}. Reproduce:
`python benchmarks/fine_head.py --work build/fine_head {command}`

Segmentation of VOC from {labelled} by kNN (30 neighbors, banks of equal size) and by a
linear probe: mean IoU of background, cat, dog, horse, cow, sheep and person on {images} test images
that took no part in any choice. Views are of the raw model. Differences are paired, with 95 %
intervals over resampled test images; one fit of the head and one training of each probe.

The head, on {what}: {report}.

Time of a forward pass with the head, as a ratio to the pass of the raw model: {ratio}.

{tables}

{read}"""


if __name__ == "__main__":
    main()
