"""What does training gain a pruned classifier? Top-1 of DeiT-Ti, dense, training-free and trained.

    python benchmarks/dynamicvit.py --work WORK [--rows ROW ...] [--threads 1]
    python benchmarks/dynamicvit.py --page      # docs/results/dynamicvit.md from the JSON alone

Trains at keep 0.7 on photos/ (480 images, one for each of 480 ImageNet classes, whose WordNet id
begins the file name), with the labels and without, and measures top-1 of the model's own head on
imagenet100/ (500 validation images, folders named by class index), which takes no part in any
training or choice. The other fractions use the weights trained at 0.7. Finished rows and trainings
stay in WORK: a run that was stopped goes on. Writes benchmarks/results/dynamicvit.json.
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
from clearvit.files import write_json
from clearvit.precision import autocast, uses_bf16
from clearvit.pruning import macs
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.stats import bootstrap
from data import DATA, RESULTS, data_path, find_model

JSON = Path(__file__).parent / "results" / "dynamicvit.json"
PAGE = RESULTS / "dynamicvit.md"
MODEL = "deit_tiny_patch16_224"
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
    content = json.loads(JSON.read_text())
    PAGE.write_text(page(content))
    print(page(content))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rows", nargs="*", default=["untrained", *RECIPES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--data", type=data_path, default=DATA)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    dense = cv.load(find_model(MODEL))
    record("dense", 1.0, dense, options)
    if "untrained" in options.rows:
        for scorer in SCORERS:
            for keep in KEEPS:
                record(scorer, keep, cv.prune(dense, keep=keep, scorer=scorer), options)
    for name in (name for name in RECIPES if name in options.rows):
        pruned = train(dense, name, options)
        for keep in KEEPS:
            record(name, keep, pruned.with_keep(keep), options)
    write_json(JSON, summary(options))


def train(dense: cv.Backbone, name: str, options: argparse.Namespace) -> PrunedBackbone:
    """Train a recipe, or continue or take what an earlier call trained."""
    out, clock = options.work / name.replace(", ", "-").replace(" ", "-"), time.process_time()
    labelled = not name.startswith("no labels")
    photos = sorted((options.data / "photos").glob("*.jpg"))
    images: Any = class_folders(photos, options.work / "classes") if labelled else photos
    pruned = cv.prune(dense, images, out=out, keep=TRAINED_AT, **RECIPES[name])
    seconds = options.work / f"{out.name}.seconds.json"
    if not seconds.exists():
        write_json(seconds, {"cpu_minutes": (time.process_time() - clock) / 60})
    return pruned


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


def record(name: str, keep: float, backbone: cv.Backbone, options: argparse.Namespace) -> None:
    """Measure a row once: whether each image is classified right, and the MACs."""
    path = file_of(name, keep, options)
    if path.exists():
        return
    right = top1(backbone, options.data / "imagenet100")
    row = {"name": name, "keep": keep, "gain": macs(backbone).gain, "right": right.tolist()}
    write_json(path, row)
    print(f"{name}, keep {keep}: top-1 {100 * right.mean():.1f}", flush=True)


def file_of(name: str, keep: float, options: argparse.Namespace) -> Path:
    folder: Path = options.work / "rows"
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}-{keep:g}.json"


@torch.inference_mode()
def top1(backbone: cv.Backbone, folder: Path) -> np.ndarray:
    """Whether the model's own head is right, image by image, (I,) of 0 and 1."""
    paths = sorted(folder.glob("*/*.jpg"))
    truth = np.array([int(path.parent.name) for path in paths])
    found = []
    with autocast(backbone.device, uses_bf16(backbone.device, "auto")):
        for pixels in backbone.pixels(paths, batch=BATCH):
            tokens = backbone.forward(pixels)
            whole = torch.cat([tokens.prefix, tokens.patches], 1)
            found.append(backbone.network.forward_head(whole).argmax(1))
    return (torch.cat(found).numpy() == truth).astype(int)


def summary(options: argparse.Namespace) -> dict[str, Any]:
    """Top-1 of every row and its paired difference from dense, in points."""
    found = [json.loads(path.read_text()) for path in (options.work / "rows").glob("*.json")]
    right = {(row["name"], row["keep"]): np.array(row["right"]) for row in found}
    rows = []
    for row in found:
        mine = right[row["name"], row["keep"]]
        apart = bootstrap(100.0 * (mine - right["dense", 1.0]))
        rows.append(
            {
                "name": row["name"],
                "keep": row["keep"],
                "gain": row["gain"],
                "top-1": 100 * float(mine.mean()),
                "minus dense": [apart.mean, apart.low, apart.high],
            }
        )
    names = ["dense", *SCORERS, *RECIPES]
    rows.sort(key=lambda row: (names.index(row["name"]), -row["keep"]))
    clocks = {}
    for name in RECIPES:
        path = options.work / f"{name.replace(', ', '-').replace(' ', '-')}.seconds.json"
        if path.exists():
            clocks[name] = json.loads(path.read_text())["cpu_minutes"]
    return {
        "model": MODEL,
        "images": len(right["dense", 1.0]),
        "photos": len(list((options.data / "photos").glob("*.jpg"))),
        "recipes": {name: RECIPES[name] for name in clocks},
        "cpu_minutes": clocks,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "rows": rows,
    }


def page(content: dict[str, Any]) -> str:
    lines = []
    for row in content["rows"]:
        mean, low, high = row["minus dense"]
        apart = "-" if row["name"] == "dense" else f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        shown = f"| {row['keep']:g} | {row['name']} | {row['gain']:.2f} | {row['top-1']:.1f} |"
        lines.append(f"{shown} {apart} |")
    recipes = "\n".join(
        f"- **{name}**: "
        + ", ".join(f"{key} {value}" for key, value in recipe.items())
        + f"; {content['cpu_minutes'][name]:.0f} CPU minutes."
        for name, recipe in content["recipes"].items()
    )
    done = {row["name"] for row in content["rows"]}
    left = [f"`{name}`" for name in (*SCORERS, *RECIPES) if name not in done]
    missing = f"Not run: {'; '.join(left)}." if left else ""
    trained = [r for r in content["rows"] if r["name"] in RECIPES and r["keep"] == TRAINED_AT]
    near = [row["name"] for row in trained if row["minus dense"][0] >= -1]
    goal = f"reached by {', '.join(near)}" if near else "missed by every trained row"
    return HEAD.format(
        **content, missing=missing, goal=goal, table="\n".join(lines), recipe_list=recipes
    )


HEAD = """# Top-1 of a pruned classifier, trained and not

`{model}` with its own ImageNet head at 224 px, stages before blocks 3, 6, 9. Trained at keep 0.7 on
{photos} photographs, one for each of {photos} of the 1000 classes; the other fractions use the same
weights. Top-1 on {images} other images of 100 classes; in brackets the 95 % interval of the paired
difference over resampled images. {date}, {machine}. Reproduce:
`python benchmarks/dynamicvit.py --work WORK`

| keep | choice of patches | gain in MACs | top-1, % | minus dense, points |
|---|---|---|---|---|
{table}

`class`, `fuse`, `merge` and `random` are not trained. The others are:

{recipe_list}

The goal, within one point of dense at 0.7, was {goal}. {missing} Predictors and the learned fill
cost MACs: compare rows by their gain, not by `keep` alone. The larger rate of the backbone
(`backbone_lr_scale` 0.1) was tried after the first trained row had been seen on these images.

480 photographs are 0.04 % of what DynamicViT was trained on (ImageNet, 30 epochs), so these rows
show what a small folder gives, not what the paper's training does. "published" has the paper's
schedule, losses, augmentation and EMA; with batches of 32 instead of 1024 images its learning rate
is scaled down 32 times and its EMA still holds most of the start.
"""


if __name__ == "__main__":
    main()
