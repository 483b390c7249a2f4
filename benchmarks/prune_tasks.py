"""What does pruning cost in tasks? Learned predictors against every scorer without training.

    python benchmarks/prune_tasks.py --work WORK [--epochs 2] [--unfreeze] [--plan]

Trains DynamicViT's predictors on photos/ at keep 0.7 without labels, then measures on frozen tokens
of the demo model at 224 px: the nearest image by class token on imagenet100/, and a linear probe of
the restored map on voc/, fitted and tested with the same model: mean IoU of all classes and of
seven well-populated ones. All rows see the same images and samples. Finished rows and the training
stay in WORK: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit import PruneConfig
from clearvit.evaluation.evaluate import evaluate
from clearvit.files import write_json
from clearvit.images import find_images
from clearvit.pruning import macs
from clearvit.pruning.config import SCORERS
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.training.train import FINETUNING, WARMUP
from data import DATA, data_path
from tables import write_tables

POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
TASKS = {"classification": "imagenet100", "segmentation": "voc"}
METRICS = (
    ("classification", "top-1"),
    ("segmentation", f"mIoU of {len(POPULATED)}"),
    ("segmentation", "mIoU"),
)
LEARNED = "learned predictors"
DENSE = "dense"
TRAINED_AT = 0.7
AS_COSTLY = 0.74  # fraction at which scorers without training have the MACs of the learned 0.7
ROWS = [
    (1.0, DENSE),
    *((TRAINED_AT, name) for name in (LEARNED, *SCORERS)),
    *((AS_COSTLY, name) for name in ("class", "fuse", "merge")),
    *((keep, name) for keep in (0.9, 0.5) for name in (LEARNED, "class", "fuse", "random")),
]


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    dense = cv.load("demo", size=options.size)
    waiting = [(row, task) for row in ROWS for task in TASKS if not path_of(row, task, options)]
    print(f"{len(ROWS) * len(TASKS)} cells, {len(waiting)} to do.", flush=True)
    if options.plan:
        return
    for row, task in sorted(waiting, key=lambda cell: cell[0][1] == LEARNED):  # training last
        backbone = dense if row[1] == DENSE else pruned(dense, *row, options)
        start = time.perf_counter()
        table = evaluate(
            backbone, task=task, data=options.data / TASKS[task], **options_of(task, options)
        )
        found = {"value": table.to_json()["rows"][0], "gain": gain(backbone)}
        write_json(file_of(row, task, options), found)
        print(f"{row}, {task}: {time.perf_counter() - start:.0f} s", flush=True)
    text = page(options, trained(dense, options))
    write_tables("prune_tasks", text, data=("voc", "photos", "imagenet100"), models=["demo"])
    print(text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--finetune-epochs", type=int, default=FINETUNING)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--unfreeze", action="store_true", help="train the backbone too")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plan", action="store_true", help="only say what is left")
    parser.add_argument("--data", type=data_path, default=DATA)
    return parser.parse_args()


class Trained:
    """The learned model and what it took."""

    def __init__(self, backbone: PrunedBackbone, seconds: dict[str, float]) -> None:
        self.backbone, self.seconds = backbone, seconds


def trained(dense: cv.Backbone, options: argparse.Namespace) -> Trained:
    """Train, or take what an earlier call has trained; CPU seconds are those of the whole run."""
    out, clock = options.work / "pruned", options.work / "seconds.json"
    choice = PruneConfig(
        keep=TRAINED_AT,
        epochs=options.epochs,
        finetune_epochs=options.finetune_epochs,
        batch=options.batch,
        lr=options.lr,
        unfreeze=options.unfreeze,
    )
    sources = [image.source for image in find_images(options.data / "photos")]
    before = time.process_time()
    backbone = prune(dense, sources, out=out, config=choice)
    if not clock.exists():
        write_json(clock, {"cpu_minutes": (time.process_time() - before) / 60})
    return Trained(backbone, json.loads(clock.read_text()))


def pruned(
    dense: cv.Backbone, keep: float, name: str, options: argparse.Namespace
) -> PrunedBackbone:
    if name == LEARNED:
        return trained(dense, options).backbone.with_keep(keep)
    return prune(dense, keep=keep, scorer=name)


def options_of(task: str, options: argparse.Namespace) -> dict[str, Any]:
    if task == "segmentation":
        return {"size": options.size, "subset": POPULATED}
    return {"size": options.size, "methods": ("knn",), "k": 1, "seeds": options.seeds}


def gain(backbone: cv.Backbone) -> float:
    return macs(backbone).gain if isinstance(backbone, PrunedBackbone) else 1.0


def file_of(row: tuple[float, str], task: str, options: argparse.Namespace) -> Path:
    folder: Path = options.work / "rows"
    return folder / f"{row[0]}-{row[1].replace(' ', '-')}-{task}-{options.size}.json"


def path_of(row: tuple[float, str], task: str, options: argparse.Namespace) -> Path | None:
    path = file_of(row, task, options)
    return path if path.exists() else None


def page(options: argparse.Namespace, learned: Trained) -> str:
    lines = []
    for row in ROWS:
        found = {task: json.loads(file_of(row, task, options).read_text()) for task in TASKS}
        cells = " | ".join(cell(found[task]["value"], metric) for task, metric in METRICS)
        gained = found["classification"]["gain"]
        lines.append(f"| {row[0]:g} | {row[1]} | {gained:.2f} | {cells} |")
    learns = "predictors and backbone" if options.unfreeze else "the predictors alone"
    again = f"--epochs {options.epochs} --finetune-epochs {options.finetune_epochs}"
    again += f" --batch {options.batch} --lr {options.lr:g}"
    again += " --unfreeze" if options.unfreeze else ""
    return f"""# Tasks on pruned models

`demo` (DINOv2 ViT-S/14), {options.size} px, stages before blocks 3, 6, 9. Learned: {learns}, at
keep {TRAINED_AT}, on {len(find_images(options.data / "photos"))} photos without labels,
{WARMUP} epochs of warm-up, {options.epochs} of training, {options.finetune_epochs} of fine-tuning,
{learned.seconds["cpu_minutes"]:.0f} CPU minutes. The other fractions use the same weights.
{time.strftime("%Y-%m-%d")}, {platform.machine()}, torch {torch.__version__}. Reproduce:
`python benchmarks/prune_tasks.py --work WORK {again}`

1-NN: the nearest image by class token on 100 classes, mean ± standard deviation over
{options.seeds} splits. mIoU: linear probe on the restored map, VOC, seven well-populated and all 21
classes. In brackets the 95 % interval over resampled test images. Index and queries are pruned
alike.

| keep | scorer | gain in MACs | 1-NN, % | mIoU of 7, % | mIoU of 21, % |
|---|---|---|---|---|---|
{chr(10).join(lines)}
"""


def cell(row: dict[str, Any], metric: str) -> str:
    value = row["values"][metric]
    std = "" if value["std"] is None else f" ± {value['std']:.1f}"
    return f"{value['mean']:.1f}{std} ({value['low']:.1f} to {value['high']:.1f})"


if __name__ == "__main__":
    main()
