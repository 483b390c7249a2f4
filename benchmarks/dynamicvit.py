"""What does training gain a pruned classifier? Top-1, dense, training-free and trained.

    python benchmarks/dynamicvit.py --work WORK [--models MODEL ...] [--rows ROW ...] [--threads 1]
    python benchmarks/dynamicvit.py --page      # docs/results/dynamicvit.md from the JSON alone

Two models with an ImageNet head. Trains at keep 0.7 on photos/ (480 images, one for each of 480
ImageNet classes, whose WordNet id begins the file name), with the labels and without, or on all
photographs at hand without labels, and measures top-1 of the model's own head on imagenet100/ (500
validation images, folders named by class index), which takes no part in any training. Recipes are
compared on classes with even numbers; those with odd numbers took no part in any choice. The other
fractions use the weights trained at 0.7. Finished rows and trainings stay in WORK: a run that was
stopped goes on. Writes benchmarks/results/dynamicvit.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.files import write_json
from clearvit.precision import autocast, uses_bf16
from clearvit.pruning import macs
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = ("deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
MANY = "no labels, more images"
LONG = {"epochs": 1, "warmup_epochs": 2, "unfreeze": True, "finetune_epochs": 10}
KEEPS = (0.9, 0.7, 0.5)
TRAINED_AT, BATCH = 0.7, 16
SCORERS = ("class", "fuse", "merge", "random")
# The published recipe has batches of 1024 images. Here a batch has 32: "published" scales the
# learning rate down as the recipe says; "published, adapted" has its rate for one batch, and an EMA
# that forgets the start within these few steps.
RECIPES: dict[str, dict[str, Any]] = {
    "no labels": {"epochs": 1, "warmup_epochs": 3, "finetune_epochs": 4, "unfreeze": True},
    "no labels, faster": {
        "epochs": 1,
        "warmup_epochs": 3,
        "finetune_epochs": 6,
        "unfreeze": True,
        "backbone_lr_scale": 0.1,
    },
    MANY: {**LONG, "backbone_lr_scale": 0.1},
    f"{MANY}, faster": {**LONG, "backbone_lr_scale": 0.3},
    "labels": {
        "epochs": 4,
        "warmup_epochs": 3,
        "labels": "folders",
        "backbone_lr_scale": 0.1,
    },
    "published, adapted": {
        "preset": "dynamicvit",
        "epochs": 6,
        "batch": 32,
        "lr_batch": 32,
        "freeze_epochs": 1,
        "lr_warmup_epochs": 1,
        "ema_decay": 0.98,
        "precision": "auto",
    },
    "published": {"preset": "dynamicvit", "epochs": 6, "batch": 32},
}


def main() -> None:
    options = parsed()
    if not options.page:
        measure(options)
    print(render("dynamicvit").read_text("utf-8"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rows", nargs="*", default=["untrained", *RECIPES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--data", type=data_path, default=DATA)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    for model in options.models:
        folder: Path = options.work / model
        folder.mkdir(parents=True, exist_ok=True)
        dense = cv.load(find_model(model))
        record("dense", 1.0, dense, folder, options)
        if "untrained" in options.rows:
            for scorer in SCORERS:
                for keep in KEEPS:
                    pruned = cv.prune(dense, keep=keep, scorer=scorer)
                    record(scorer, keep, pruned, folder, options)
        for name in (name for name in RECIPES if name in options.rows):
            trained = train(dense, name, folder, options)
            for keep in KEEPS:
                record(name, keep, trained.with_keep(keep), folder, options)
        content = read_result("dynamicvit")
        content[model] = with_earlier(summary(folder, options), content.get(model))
        used = ("photos", "imagenet100", "flowers", "cars", "voc")
        write_result("dynamicvit", content, data=used, seeds=[0], models=[*content])


def train(
    dense: cv.Backbone, name: str, folder: Path, options: argparse.Namespace
) -> PrunedBackbone:
    """Train a recipe, or continue or take what an earlier call trained."""
    out, clock = folder / slug(name), time.process_time()
    photos = sorted((options.data / "photos").glob("*.jpg"))
    images: Any = photos
    if name.startswith(MANY):
        images = [*photos, *more_images(options.data)]
    elif not name.startswith("no labels"):
        images = class_folders(photos, folder / "classes")
    pruned = cv.prune(dense, images, out=out, keep=TRAINED_AT, **RECIPES[name])
    seconds = folder / f"{out.name}.seconds.json"
    if not seconds.exists():
        write_json(seconds, {"cpu_minutes": (time.process_time() - clock) / 60})
    return pruned


def more_images(data: Path) -> list[Path]:
    """All flowers and cars, and the images of VOC's training split."""
    sets = [sorted((data / name).glob("*/*.jpg")) for name in ("flowers", "cars")]
    voc = read_masks(data / "voc", split="train").images
    return [*sets[0], *sets[1], *map(Path, voc)]


def slug(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def class_folders(photos: list[Path], folder: Path) -> Path:
    """Sort photos into one folder for each of the 1000 classes, in the order of the classifier."""
    from timm.data import ImageNetInfo  # after clearvit has made torchvision importable

    for synset in ImageNetInfo("imagenet-1k").label_names():
        (folder / synset).mkdir(parents=True, exist_ok=True)
    for photo in photos:
        link = folder / photo.name.partition("_")[0] / photo.name
        if not link.exists():
            link.symlink_to(photo.absolute())
    return folder


def record(
    name: str, keep: float, backbone: cv.Backbone, folder: Path, options: argparse.Namespace
) -> None:
    """Measure a row once: whether each image is classified right, and the MACs."""
    path = folder / "rows" / f"{slug(name)}-{keep:g}.json"
    if path.exists():
        return
    right, odd = top1(backbone, options.data / "imagenet100")
    row = {"name": name, "keep": keep, "gain": macs(backbone).gain, "right": right.tolist()}
    write_json(path, {**row, "odd": odd.tolist()})
    print(f"{name}, keep {keep}: top-1 {100 * right.mean():.1f}", flush=True)


@torch.inference_mode()
def top1(backbone: cv.Backbone, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Whether the model's own head is right, and whether the class is odd, (I,) of 0 and 1."""
    paths = sorted(folder.glob("*/*.jpg"))
    truth = np.array([int(path.parent.name) for path in paths])
    found = []
    with autocast(backbone.device, uses_bf16(backbone.device, "auto")):
        for pixels in backbone.pixels(paths, batch=BATCH):
            tokens = backbone.forward(pixels)
            whole = torch.cat([tokens.prefix, tokens.patches], 1)
            found.append(backbone.network.forward_head(whole).argmax(1))
    return (torch.cat(found).numpy() == truth).astype(int), truth % 2


def summary(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Top-1 of every row and its paired difference from dense, in points."""
    found = [json.loads(path.read_text()) for path in (folder / "rows").glob("*.json")]
    right = {(row["name"], row["keep"]): np.array(row["right"]) for row in found}
    rows = []
    for row in found:
        mine = right[row["name"], row["keep"]]
        apart = 100.0 * (mine - right["dense", 1.0])
        odd = np.array(row["odd"], dtype=bool)
        facts = {"name": row["name"], "keep": row["keep"], "gain": row["gain"]}
        facts |= {"top-1": 100 * float(mine.mean()), "minus dense": interval(apart)}
        rows.append({**facts, "even": interval(apart[~odd]), "odd": interval(apart[odd])})
    paths = {name: folder / f"{slug(name)}.seconds.json" for name in RECIPES}
    clocks = {
        name: json.loads(path.read_text())["cpu_minutes"]
        for name, path in paths.items()
        if path.exists()
    }
    photos = len(list((options.data / "photos").glob("*.jpg")))
    return {
        "images": len(right["dense", 1.0]),
        "photos": photos,
        "more": photos + len(more_images(options.data)),
        "recipes": {name: RECIPES[name] for name in clocks},
        "cpu_minutes": clocks,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "rows": rows,
    }


def with_earlier(facts: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    """Add rows of an earlier run that are not in WORK; some have no halves."""
    old = old or {"rows": [], "recipes": {}, "cpu_minutes": {}}
    fresh = {(row["name"], row["keep"]) for row in facts["rows"]}
    rows = [*facts["rows"], *(r for r in old["rows"] if (r["name"], r["keep"]) not in fresh)]
    names = ["dense", *SCORERS, *RECIPES]
    rows.sort(key=lambda row: (names.index(row["name"]), -row["keep"]))
    both = {key: old[key] | facts[key] for key in ("recipes", "cpu_minutes")}
    return {**facts, **both, "rows": rows}


def interval(values: np.ndarray) -> list[float]:
    found = bootstrap(values)
    return [found.mean, found.low, found.high]


if __name__ == "__main__":
    main()
