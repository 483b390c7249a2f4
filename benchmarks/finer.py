"""Finer and cleaner tokens at equal passes: views, projection and smoothing beside their controls.

    python benchmarks/finer.py MODEL --size 224 --work WORK [--train N] [--passes …] [--skip …]
    python benchmarks/finer.py --page        # docs/results/finer.md from benchmarks/results/*.json

Linear probe and kNN on PASCAL VOC from 20, 60 and all labelled images (mean IoU and boundary IoU of
the seven well populated classes), depth by ridge regression, CorLoc of `discover` on final tokens.
Kernel, width and phases of the views are the defaults (`finer_choices.py` tries others, on training
images); the number of directions of position is chosen without labels on photos.
No choice saw a test image.
Every row but "raw" has its paired difference to raw and to raw blurred with a 95 % interval over
resampled test images. WORK keeps features and finished rows: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.backbones.output import positional_basis
from clearvit.datasets.folders import read_depths
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit
from clearvit.datasets.voc import read_voc_boxes
from clearvit.discovery import consensus, corloc, to_pixels
from clearvit.evaluation.evaluation_table import Result, resample_metrics
from clearvit.files import write_json
from clearvit.images import read_image
from clearvit.probes.depth import fit_log_depth, measure_depth
from clearvit.probes.features import sample_images, select_evenly, use_whole_image
from clearvit.probes.knn import fit_knn
from clearvit.probes.metrics import depth_metrics, segmentation_metrics
from clearvit.probes.segmentation import collect_patches, measure_whole
from clearvit.probes.sgd import train_fast_head
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render
from view_features import Recipe, extract, stored_features

POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
MOST = 50  # directions
BANK = 80_000  # labelled patches that vote, the same for every grid
TASKS = ("segmentation", "depth", "discovery")
SEEDS = {20: 2}  # samples of labelled images; one of more
LARGER = {  # by patch and size: sizes whose one pass costs so many (by operations; 602: 11.7)
    (14, 224): {4: 406, 10: 602},
    (14, 448): {4: 728},
    (16, 224): {4: 400, 10: 544},
}


def recipes(size: int, patch: int, directions: int) -> list[Recipe]:
    """All rows of a table; `directions` is the number chosen without labels (0: rows drop out)."""
    one = Recipe("raw")
    rows = [one, Recipe("raw, blurred", smooth=True)]
    removed = directions or 20  # where none is chosen, 20 show what it would have done
    label = f"{removed} directions removed" + ("" if directions else " (not chosen)")
    rows.append(Recipe(f"raw, {label}", directions=removed))
    rows.append(Recipe(f"raw, {label}, blurred", directions=removed, smooth=True))
    others = [k for k in (5, 20, 50) if k != removed]
    rows += [Recipe(f"raw, {k} directions removed (not chosen)", directions=k) for k in others]
    for basis in ("uncentred", "random"):
        name = f"raw, {removed} {basis} directions removed (control)"
        rows.append(Recipe(name, directions=removed, basis=basis))
    for passes, larger in LARGER.get((patch, size), {}).items():
        rows.append(Recipe(f"raw at {larger} px (the cost of {passes})", size=larger))
    rows += [Recipe("PH-Reg's views", n, "official") for n in (4, 10, 20)]
    rows.append(Recipe("PH-Reg's views, blurred", 10, "official", smooth=True))
    for scale in (1, 2):
        rows += [
            Recipe(f"sub-patch views, scale {scale}", n, "lattice", scale) for n in (4, 10, 20)
        ]
    rows.append(Recipe("sub-patch views, scale 4", 20, "lattice", 4))
    for scale in (1, 2):
        name = f"sub-patch views, scale {scale}, {label}"
        rows.append(Recipe(name, 10, "lattice", scale, directions=removed))
    return rows


def main() -> None:
    options = parsed()
    if options.page:
        render("finer")
        return
    torch.set_num_threads(options.threads)
    backbone = use_whole_image(cv.load(find_model(options.model)))
    work = options.work / f"{backbone.name.replace('/', '-')[-40:]}-{options.size}"
    directions = choose_directions(backbone, options.size, options.data, work)
    rows = recipes(options.size, backbone.patch[0], directions["directions"])
    for also in options.also:
        name, _, model = also.partition("=")
        rows.append(Recipe(name, model=model))
    order = [(row.name, row.passes) for row in rows]
    rows = [row for row in rows if row.passes in (1, *options.passes)]
    if options.skip:
        rows = [row for row in rows if not any(word in row.name for word in options.skip)]
    if options.only:  # raw and raw blurred are what others are compared to
        rows = rows[:2] + [r for r in rows[2:] if any(word in r.name for word in options.only)]
    tasks = {"segmentation": segmentation, "depth": depth, "discovery": discovery}
    found: dict[str, Any] = {}
    for name in options.tasks:
        found[name] = tasks[name](backbone, rows, options, work)
    settings = {key: getattr(options, key) for key in ("size", "train", "test")}
    content = {
        "model": options.model,
        **settings,
        "positional": directions,
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "commands": [command(options)],
        "tasks": found,
    }
    name = f"finer-{Path(options.model).name}-{options.size}"
    content = merge(read_result(name), content, order)
    used = ("photos", "voc", "depth")
    write_result(name, content, data=used, seeds=[0], models=[options.model])
    render("finer")


def merge(old: dict[str, Any], new: dict[str, Any], order: list[Any]) -> dict[str, Any]:
    """Add what was measured now; tasks, rows and cells not asked for stay as they were."""
    commands = [c for c in old.get("commands", ()) if c not in new["commands"]]
    tasks = dict(old.get("tasks", {}))
    for task, rows in new["tasks"].items():
        joined = {(row["row"], row["passes"]): row for row in tasks.get(task, ())}
        for row in rows:
            key = row["row"], row["passes"]
            joined[key] = joined.get(key, {}) | row
        places = {key: place for place, key in enumerate(order)}
        keys = sorted(joined, key=lambda key: places.get(key, len(places)))
        tasks[task] = [joined[key] for key in keys]
    return old | new | {"commands": [*commands, *new["commands"]], "tasks": tasks}


def command(options: argparse.Namespace) -> str:
    """The command that makes this table again, without paths of the machine it ran on."""
    line = ["python", "benchmarks/finer.py", options.model, "--size", str(options.size)]
    if (options.train, options.test) != (200, 150):
        line += ["--train", str(options.train), "--test", str(options.test)]
    if len(options.tasks) < len(TASKS):
        line += ["--tasks", *options.tasks]
    for name in ("passes", "skip", "only", "labelled"):
        if getattr(options, name) is not None:
            line += [f"--{name}", *map(str, getattr(options, name))]
    also = [one.partition("=")[0] + "=dir:PATH" for one in options.also]
    return shlex.join([*line, *(["--also", *also] if also else [])])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model", nargs="?", default="demo", help="demo, or a name in CLEARVIT_WEIGHTS"
    )
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("build/finer"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--test", type=int, default=150)
    parser.add_argument("--skip", nargs="*", help="leave out rows whose name contains one of these")
    parser.add_argument("--only", nargs="*", help="and raw; the rest stays as it was measured")
    parser.add_argument("--passes", type=int, nargs="*", default=[4, 10, 20], help="and 1")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--labelled", type=int, nargs="*", default=[20, 60], help="and all")
    parser.add_argument(
        "--also", nargs="*", default=[], help="NAME=MODEL: one pass of another model"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    return parser.parse_args()


def choose_directions(backbone: cv.Backbone, size: int, data: Path, work: Path) -> dict[str, Any]:
    """What `cv.cure(method="positional")` chooses on 48 photos without labels."""
    path = work / "directions.json"
    if not path.exists():
        photos = sorted((data / "photos").glob("*.jpg"))[::10]
        with torch.autocast("cpu", torch.bfloat16):
            report = cv.cure(backbone, photos, method="positional", size=size).report
        write_json(path, report.to_json())
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def bases_of(backbone: cv.Backbone, size: int) -> dict[str, Tensor]:
    """Directions of position, the same without subtracting the mean token, and random ones."""
    generator, total = torch.Generator().manual_seed(0), 0.0
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        position = positional_basis(backbone, MOST, (size, size))
        for _ in range(4):
            noise = torch.randn(4, 3, size, size, generator=generator)
            total = total + backbone.forward(noise).patches.float().sum(0)
    uncentred = torch.linalg.svd(total.double(), full_matrices=False)[2][:MOST].float()
    random = torch.randn(backbone.width, MOST, generator=generator)
    return {
        "position": position.float(),
        "uncentred": uncentred,
        "random": torch.linalg.qr(random)[0].T,
    }


# --- segmentation ---------------------------------------------------------------------------------


def segmentation(
    backbone: cv.Backbone, rows: list[Recipe], options: argparse.Namespace, work: Path
) -> list[dict[str, Any]]:
    """Linear probe and kNN of every row."""
    train, test = (read_masks(options.data / "voc", split=name) for name in ("train", "val"))
    train = train.select(select_evenly(len(train), options.train))
    test = test.select(select_evenly(len(test), options.test))
    for split in (train, test):
        extract(work, split, rows, backbone, options.size)
    bases, found = bases_of(backbone, options.size), []
    for recipe in rows:
        features = [
            stored_features(work, s, recipe, backbone, options.size, bases) for s in (train, test)
        ]
        found.append({"row": recipe.name, "passes": recipe.passes, "scale": recipe.scale})
        main = not any(word in recipe.name for word in ("(", "PH-Reg's views, blurred"))
        wide = main and recipe.passes in (1, 10) and recipe.scale <= 2
        for labelled in [*(options.labelled if wide else ()), None]:
            results = measure(features, (train, test), labelled, work, recipe)
            found[-1][str(labelled or len(train))] = results
    return compare(found, test)


def measure(
    features: list[Any],
    splits: tuple[MaskSplit, MaskSplit],
    labelled: int | None,
    work: Path,
    recipe: Recipe,
) -> dict[str, list[list[float]]]:
    """Rows of counts per seed, for "linear" and "kNN"; kept on disk."""
    train, test = splits
    basis = "" if recipe.basis == "position" else f"-{recipe.basis}"
    key = f"{recipe.stored}-{recipe.directions}{basis}-{recipe.smooth}-{labelled}"
    key += f"-{len(train)}-{len(test)}"
    path = work / "rows" / f"{key}.npz"
    if not path.exists():
        start, result = time.perf_counter(), {}
        for seed in range(SEEDS.get(labelled or 0, 1)):
            chosen = sample_images(len(train), labelled, seed)
            scorers = {"linear": train_fast_head(features[0], train, chosen, seed=seed)}
            if recipe.scale <= (2 if labelled is None else 1):
                tokens, labels = collect_patches(features[0], train, chosen, limit=BANK, seed=seed)
                scorers["kNN"] = fit_knn(tokens, labels, k=30, temperature=0.02)
            found = measure_whole(list(scorers.values()), features[1], test)
            result |= {f"{name}-{seed}": rows for name, rows in zip(scorers, found, strict=True)}
        path.parent.mkdir(exist_ok=True)
        np.savez(path.with_suffix(".part.npz"), **result)
        path.with_suffix(".part.npz").rename(path)
        print(
            f"{recipe.name}, {recipe.passes}: {labelled}: {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    kept = np.load(path)
    return {
        task: [kept[name] for name in kept.files if name.startswith(task)]
        for task in ("linear", "kNN")
    }


def compare(found: list[dict[str, Any]], test: MaskSplit) -> list[dict[str, Any]]:
    """Turn counts into metrics with paired differences to raw and to raw blurred."""
    subset = tuple(test.classes.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=test.classes, subset=subset)

    def metrics(row: dict[str, Any], labelled: str, task: str) -> Any:
        rows = row.get(labelled, {}).get(task)
        return resample_metrics(Result("", 0, rows, summary), seed=0) if rows else None

    table = []
    for row in found:
        entry = {key: row[key] for key in ("row", "passes", "scale")}
        for labelled in [key for key in row if key not in entry]:
            for task in ("linear", "kNN"):
                own = metrics(row, labelled, task)
                if own is None:
                    continue
                for metric in ("mIoU", "mIoU of 7", "boundary IoU of 7"):
                    cell = {"value": own[metric].interval().mean}
                    for name, base in (("raw", found[0]), ("blurred", found[1])):
                        if base is not row:
                            apart = own[metric] - metrics(base, labelled, task)[metric]
                            cell[f"minus {name}"] = list(vars(apart.interval()).values())
                    entry[f"{task}, {labelled}, {metric}"] = cell
        table.append(entry)
    return table


# --- depth and discovery --------------------------------------------------------------------------


def few(rows: list[Recipe]) -> list[Recipe]:
    """Rows for depth and discovery: at most ten passes, up to scale 2."""
    return [row for row in rows if row.passes <= 10 and row.scale <= 2]


def depth(
    backbone: cv.Backbone, rows: list[Recipe], options: argparse.Namespace, work: Path
) -> list[dict[str, Any]]:
    """RMSE of depth by ridge regression."""
    rows, train, test = (
        few(rows),
        *(read_depths(options.data / "depth", split=s) for s in ("train", "test")),
    )
    for split in (train, test):
        extract(work / "depth", split, rows, backbone, options.size)
    bases, table, base = bases_of(backbone, options.size), [], None
    for recipe in rows:
        features = [
            stored_features(work / "depth", s, recipe, backbone, options.size, bases)
            for s in (train, test)
        ]
        head = fit_log_depth(features[0], train, range(len(train)), 1e-2)
        errors = measure_depth(head, features[1], test, cls=False, eigen_crop=False)
        base = errors if base is None else base
        apart = list(vars(bootstrap(errors[:, 0] - base[:, 0])).values())
        rmse = float(depth_metrics(errors.sum(0))["RMSE"])
        table.append(
            {"row": recipe.name, "passes": recipe.passes, "RMSE": rmse, "minus raw": apart}
        )
    return table


def discovery(
    backbone: cv.Backbone, rows: list[Recipe], options: argparse.Namespace, work: Path
) -> list[dict[str, Any]]:
    """CorLoc of the consensus of `discover`, on final tokens."""
    rows, images = few(rows), read_voc_boxes(options.data / "voc").images
    split = MaskSplit("boxes", options.data, tuple(one.image for one in images), (), (), ())
    extract(work, split, rows, backbone, options.size)
    bases, table, base = bases_of(backbone, options.size), [], None
    for recipe in rows:
        features = stored_features(work, split, recipe, backbone, options.size, bases)
        hits = []
        for index, image in enumerate(images):
            photo = read_image(image.image)
            box = consensus([features.patches([index])[0]], features.grid)[0].box
            placed = to_pixels(box, features.grid, (photo.height, photo.width))
            hits.append(corloc([placed], [image.boxes]) > 0)
        found = 100 * np.array(hits, dtype=float)
        base = found if base is None else base
        apart = list(vars(bootstrap(found - base)).values())
        value = float(found.mean())
        table.append(
            {"row": recipe.name, "passes": recipe.passes, "CorLoc": value, "minus raw": apart}
        )
    return table


if __name__ == "__main__":
    main()
