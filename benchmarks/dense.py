"""Tasks on frozen tokens: raw, denoised and cured models in one table.

    python benchmarks/dense.py [MODEL …] --data DATA [--sizes 224 448] [--views 10]
        [--tasks segmentation neighbours depth classification correspondence]

The first model is the raw one; it is also measured as the average over `--views` views. DATA holds
voc/ (PASCAL VOC with masks), depth/ ({train,test}/{rgb,depth}), imagenet100/ (class folders) and
photos/. Segmentation: linear probe and dense neighbours from 20, 60 and all labelled images, mean
IoU of all classes and of the seven that are well populated. Classification: the nearest image, and
prototypes of four images per class. Every finished table is kept beside the cache, so a run that
was stopped goes on. `--recipes` compares the fast probe with the stepwise one on cached tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

import clearvit as cv
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.evaluate import TASKS, evaluate
from clearvit.files import write_json

DATA = Path(os.environ.get("CLEARVIT_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULT = Path(__file__).parents[1] / "docs" / "results" / "dense.md"
POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
FOLDERS = {
    "segmentation": "voc",
    "neighbours": "voc",
    "depth": "depth",
    "classification": "imagenet100",
    "correspondence": "photos",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    parser.add_argument("--views", type=int, default=10, help="of the denoised model; 0: without")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--limit", type=int, help="test images")
    parser.add_argument("--recipes", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path("dense-cache"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    torch.set_num_threads(options.threads)
    backbones = models(options)
    if options.recipes:
        recipes(backbones[0], options)
        return
    parts = ["# Tasks on frozen tokens\n", *__doc__.split("\n\n")[2:3]]
    for size in options.sizes:
        for task in options.tasks:
            parts.append(section(backbones, task, size, options))
            print(parts[-1], flush=True)
    options.out.write_text("\n".join(parts))


def models(options: argparse.Namespace) -> list[cv.Backbone]:
    """Load the models; the average over views stands second."""
    found = [cv.load(name) for name in options.models]
    if options.views:
        config = cv.CureConfig(views=options.views)
        denoised = cv.cure(found[0], method="denoise", config=config)
        found.insert(1, denoised)
    return found


def config_of(task: str, size: int, options: argparse.Namespace) -> EvaluateConfig:
    common = {"size": size, "draws": options.draws, "cache": options.cache, "limit": options.limit}
    if task in ("segmentation", "neighbours"):
        return EvaluateConfig(labelled=(20, 60, None), subset=POPULATED, **common)
    if task == "depth":
        return EvaluateConfig(labelled=(20, None), **common)
    if task == "classification":
        common["limit"] = None  # a folder without splits
        methods = ("knn", "prototypes")
        return EvaluateConfig(labelled=(4,), methods=methods, neighbours=1, **common)
    common |= {"draws": 1, "limit": options.limit or 60}
    return EvaluateConfig(**common)


def section(backbones: list[cv.Backbone], task: str, size: int, options: argparse.Namespace) -> str:
    """One table, kept as JSON and text once it is whole."""
    key = f"{task}-{size}-{'-'.join(b.fingerprint()[:8] for b in backbones)}-{options.draws}"
    kept = options.cache / f"{key}-{options.limit}.json"
    if kept.exists():
        text = json.loads(kept.read_text())["text"]
    else:
        config = config_of(task, size, options)
        folder = options.data / FOLDERS[task]
        table = evaluate(backbones, task=task, data=folder, config=config)
        text = table.text()
        write_json(kept, {"text": text, **table.to_json()})
    return f"\n## {task}, {size} px\n\n```\n{text}\n```\n"


def recipes(backbone: cv.Backbone, options: argparse.Namespace) -> None:
    """Hold the fast probe against the stepwise one, on the same cached tokens."""
    folder = options.data / "voc"
    seconds = {}
    size = options.sizes[0]
    evaluate(  # fills the cache, so that only the probes are timed
        backbone,
        task="segmentation",
        data=folder,
        config=EvaluateConfig(size=size, cache=options.cache, limit=options.limit),
    )
    for recipe in ("fast", "sgd"):
        config = EvaluateConfig(
            size=size, cache=options.cache, limit=options.limit, recipe=recipe, subset=POPULATED
        )
        start = time.perf_counter()
        table = evaluate(backbone, task="segmentation", data=folder, config=config)
        seconds[recipe] = time.perf_counter() - start
        print(f"{table.text()}\n{seconds[recipe]:.1f} s, measuring included", flush=True)
    print(f"ratio of times: {seconds['sgd'] / seconds['fast']:.1f}")


if __name__ == "__main__":
    main()
