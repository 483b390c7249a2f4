"""Short cures compared: ranks and trained parts, and recipes of training at equal time.

    python benchmarks/cure_recipes.py MODEL --table ranks --work WORK [--seeds 0 1]
    python benchmarks/cure_recipes.py --page    # docs/results/cure_recipes.md

Tables: "ranks", "classifiers" (of models with a head, whose top-1 is measured), "recipes" and
"students" (losses and targets that are no options, student_trials.py). Every 20th photo is held out
of everything; of the others PHOTOS are cured on. "recipes" and "students" are judged on labelled
images that train no probe, for a choice; the others on test images, since nothing is chosen among
them. Distance gone: of the cosine distance to ten half-patch views on the photos held
out. Each cure runs in a process of its own, whose peak memory and CPU time count. WORK keeps
finished rows: the same command goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import clearvit as cv
import student_trials
from clearvit.cures.config import CureConfig
from clearvit.datasets.splits import MaskSplit
from clearvit.files import read_json, write_json
from clearvit.images import find_images
from data import DATA, data_path, find_model
from evidence import write_result
from judging import (
    LABELLED,
    RAW,
    TESTED,
    compare_counts,
    compare_right,
    count_segmentation,
    judge_class_token,
    splits_of,
)
from render import render
from view_features import Recipe

HELD_OUT = 20  # every n-th photo
PUBLISHED = ("registers", "positions", "patches", "last")
ONE_RATE = (1.0, 1.0, 1.0)
TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "ranks": {
        **{f"rank {rank}": {"rank": rank} for rank in (1, 4, 8, 16, 64)},
        "all weights": {"unfreeze": ("all",)},
        "PH-Reg's parts": {"unfreeze": PUBLISHED, "lr": 1e-4, "lr_scale": ONE_RATE},
    },
    "classifiers": {
        "class weight 1 (default)": {},
        "class weight 4": {"class_weight": 4.0},
        "no class weight": {"class_weight": 0.0},
        "rank 4": {"rank": 4},
        "rate 5e-5": {"lr": 5e-5},
        "last four blocks, whole": {"unfreeze": ("last-4",), "lr": 3e-5},
    },
    "recipes": {
        "default": {},
        "rate to zero": {"lr_end": 1e-9},
        "rate 1e-4": {"lr": 1e-4},
        "rate 4e-4": {"lr": 4e-4},
        "batch 8": {"batch": 8},
        "batch 2": {"batch": 2},
        "EMA 0.98": {"ema_decay": 0.98},
        "no squared error": {"mse_weight": 0.0},
        "whole-patch views": {"sampler": "whole"},
        "20 directions removed": {"directions": 20},
        "20 directions, rate 4e-4": {"directions": 20, "lr": 4e-4},
    },
    "students": {
        "default": {},
        "a loss on whitened tokens": {"trial": "whitened"},
        "a loss on relations": {"trial": "relations"},
        "targets at twice the size": {"trial": "larger 1"},
        "targets at twice the size, four views": {"trial": "larger 4"},
    },
}


def main() -> None:
    options = parsed()
    if options.page:
        render("cure_recipes")
        return
    torch.set_num_threads(1)
    work = options.work / f"{Path(options.model).name}-{options.size}-{options.labelled}"
    if options.one:
        return train_one(options, work)
    raw = cv.load(find_model(options.model), size=options.size)
    part = "choice" if options.table in ("recipes", "students") else "report"
    splits = splits_of(options.data, part, (options.labelled, options.tested))
    rows = TABLES[options.table]
    rows = {name: rows[name] for name in options.rows or rows}
    base: dict[str, Any] = {"counts": {}, "right": {}}
    if not options.no_tasks:
        base["right"] = judge_raw(raw, options, work)
    if not options.no_probes and not options.no_tasks:
        base["counts"] = count_segmentation(raw, [RAW], splits, work, options.size)["raw"]
    found = []
    for name in rows:
        runs = [finished(name, seed, options, work) for seed in options.seeds]
        entry = judge(runs, raw, base, splits, options, work) | {"row": name}
        found.append(entry)
        print(json.dumps(entry), flush=True)
    content = {
        "model": options.model,
        "table": options.table,
        **{key: getattr(options, key) for key in ("size", "photos", "epochs", "seeds")},
        "labelled": len(splits[0]),
        "tested": len(splits[1]),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "command": command(options),
        "raw": raw_values(base, splits[1].classes),
        "rows": found,
    }
    name = f"cure-{options.table}-{Path(options.model).name}" + f"-{options.part}" * bool(
        options.part
    )
    used = ("photos", "voc", "imagenet100")
    write_result(name, content, data=used, seeds=content["seeds"], models=[options.model])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--table", choices=TABLES, default="ranks")
    parser.add_argument("--rows", nargs="*", help="some of the table; all by default")
    parser.add_argument("--work", type=Path, default=Path("build/cure_recipes"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--photos", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--labelled", type=int, default=LABELLED)
    parser.add_argument("--tested", type=int, default=TESTED)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--no-probes", action="store_true", help="measure class tokens only")
    parser.add_argument("--no-tasks", action="store_true", help="measure the cures alone")
    parser.add_argument("--part", default="", help="name of a part of a table, a result of its own")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    """The command that makes this table again, without paths of the machine it ran on."""
    line = f"python benchmarks/cure_recipes.py {options.model} --table {options.table}"
    numbers = f"--size {options.size} --photos {options.photos} --epochs {options.epochs}"
    numbers += f" --labelled {options.labelled} --tested {options.tested}"
    numbers += " --no-probes" if options.no_probes else ""
    numbers += " --no-tasks" if options.no_tasks else ""
    numbers += f" --part {options.part}" if options.part else ""
    if options.rows:
        numbers += f" --rows {shlex.join(options.rows)}"
    return f"{line} {numbers} --seeds {' '.join(map(str, options.seeds))}"


# --- one cure, in a process of its own ------------------------------------------------------------


def finished(name: str, seed: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Give the facts of one cure; train it if that is still to be done."""
    folder = folder_of(name, seed, options, work)
    if not (folder / "facts.json").exists():
        line = [sys.executable, __file__, options.model, "--one", name, "--seeds", str(seed)]
        for key in ("table", "work", "data", "size", "photos", "epochs", "labelled"):
            line += [f"--{key}", str(getattr(options, key))]
        subprocess.run(line, check=True)
    facts: dict[str, Any] = {"folder": folder, **read_json(folder / "facts.json")}
    return facts


def folder_of(name: str, seed: int, options: argparse.Namespace, work: Path) -> Path:
    return work / "cures" / f"{name} {seed} {options.photos} {options.epochs}"


def train_one(options: argparse.Namespace, work: Path) -> None:
    """Cure, and write what it took and how much nearer it came on photos held out."""
    (seed,), folder = options.seeds, folder_of(options.one, options.seeds[0], options, work)
    chosen = {"epochs": options.epochs, "seed": seed} | TABLES[options.table][options.one]
    trial = chosen.pop("trial", "")
    if trial:
        student_trials.apply(trial)
    config = CureConfig(keep_anyway=True, head_agreement=0.0, **chosen)
    teacher = f"targets-{config.sampler}-{config.directions}-{seed}-{options.photos}"
    teacher += f"-{trial}" if trial.startswith("larger") else ""
    config = dataclasses.replace(config, targets_dir=str(work / teacher))
    photos = [image.source for image in find_images(options.data / "photos")]
    others = [photo for i, photo in enumerate(photos) if i % HELD_OUT][: options.photos]
    raw = cv.load(find_model(options.model), size=options.size)
    watch = Watch()
    cured = cv.cure(raw, others, out=folder / "cured", config=config, progress=watch)
    peak = peak_memory()
    file = folder / "cured" / "cure.safetensors"
    if not file.exists():
        file = folder / "cured" / "model.safetensors"
    gone = distances(raw, cured, photos[::HELD_OUT], work)
    facts = {
        "distance gone": 100 * (1 - gone[1] / gone[0]),
        "file MB": file.stat().st_size / 1e6,
        "peak GB": peak / 1e6,
        "CPU s per step": watch.seconds / max(1, watch.steps),
        "steps": watch.steps,
        "CPU s": watch.seconds,
        "class cosine": cured.report.class_cosine,
        "same class": 100 * (cured.report.agreement or 0.0),
    }
    write_json(folder / "facts.json", facts)


class Watch:
    """Note the CPU time of the steps."""

    def __init__(self) -> None:
        self.seconds, self.steps, self.last = 0.0, 0, time.process_time()

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Count a step; the first one also holds what came before it."""
        now = time.process_time()
        if stage == "train" and done > 1:
            self.seconds, self.steps = self.seconds + now - self.last, self.steps + 1
        self.last = now


def peak_memory() -> int:
    """Kilobytes that this process held at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@torch.inference_mode()
def distances(raw: cv.Backbone, cured: cv.Backbone, photos: list[Any], work: Path) -> list[float]:
    """Mean cosine distance of one pass of each model to ten half-patch views of the raw one."""
    file = work / "held_out.pt"
    if file.exists():
        clean = torch.load(file, weights_only=True)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            clean = torch.cat(
                [
                    cv.denoise(raw, photo, seed=10_000 + i).patches.float()
                    for i, photo in enumerate(photos)
                ]
            )
        torch.save(clean, file)
    found = []
    for model in (raw, cured):
        with torch.autocast("cpu", torch.bfloat16):
            tokens = model.tokens(photos).patches.float()
        found.append(float((1 - F.cosine_similarity(tokens, clean, dim=-1)).mean()))
    return found


# --- what it is worth -----------------------------------------------------------------------------


def judge(
    runs: list[dict[str, Any]],
    raw: cv.Backbone,
    base: dict[str, Any],
    splits: tuple[MaskSplit, MaskSplit],
    options: argparse.Namespace,
    work: Path,
) -> dict[str, Any]:
    """All columns of one row: means and paired differences over seeds."""
    recipes = [Recipe(run["folder"].name, model=f"dir:{run['folder'] / 'cured'}") for run in runs]
    size, counts = options.size, {}
    if base["counts"]:
        counts = count_segmentation(raw, recipes, splits, work, size)
    entry: dict[str, Any] = {}
    for key in runs[0]:
        if key != "folder":
            entry[key] = [run[key] for run in runs]
    for task in base["counts"]:
        own = [counts[recipe.name][task][0] for recipe in recipes]
        entry[task] = compare_counts(own, base["counts"][task], splits[1].classes)
    right = []
    if base["right"]:
        right = [judge_kept(run["folder"], options.data, size) for run in runs]
    for task, values in base["right"].items():
        entry[task] = compare_right([one[task] for one in right], values)
    return entry


def judge_raw(raw: cv.Backbone, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Class tokens of the raw model, kept on disk."""
    file = work / "class_token.npz"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        np.savez(file, **judge_class_token(raw, options.data, options.size))
    with np.load(file) as kept:
        return {name: kept[name] for name in kept.files}


def judge_kept(folder: Path, data: Path, size: int) -> dict[str, Any]:
    """Class tokens of a finished cure, kept on disk."""
    file = folder / "class_token.npz"
    if not file.exists():
        np.savez(file, **judge_class_token(cv.load(f"dir:{folder / 'cured'}"), data, size))
    with np.load(file) as kept:
        return {name: kept[name] for name in kept.files}


def raw_values(base: dict[str, Any], classes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        task: compare_counts(base["counts"][task], base["counts"][task], classes)
        for task in base["counts"]
    }
    return found | {task: compare_right([one], one) for task, one in base["right"].items()}


if __name__ == "__main__":
    main()
