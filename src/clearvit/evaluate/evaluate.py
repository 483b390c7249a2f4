"""`cv.evaluate`: what frozen tokens are worth in a task, for any number of backbones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from clearvit.backbones.backbone import Backbone
from clearvit.dense.classification import aligned
from clearvit.dense.features import spread
from clearvit.dense.folders import label_splits, read_depths, read_labels
from clearvit.dense.layouts import read_masks, recognised
from clearvit.dense.splits import DepthSplit, LabelSplit, MaskSplit, Split
from clearvit.errors import ImageError, ModelError, closest
from clearvit.evaluate import tasks, tasks_untrained, zero_shot
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.explanation import explain_numbers
from clearvit.evaluate.explanation_photos import read_photos
from clearvit.evaluate.retrieval import collection_facts, retrieve
from clearvit.evaluate.retrieval_layouts import read_collection
from clearvit.evaluate.table import Found, Result, Row, Table, as_row, found_by
from clearvit.images import find_images
from clearvit.progress import Progress

Task = Literal[
    "segmentation",
    "neighbours",
    "depth",
    "classification",
    "correspondence",
    "clustering",
    "class-correspondence",
    "zero-shot-segmentation",
    "zero-shot-classification",
    "retrieval",
    "explanation",
]
TASKS: tuple[Task, ...] = get_args(Task)
Run = Callable[..., list[Result]]

# Options that other tasks use; a protocol names only what its numbers depend on.
_COMMON = ("size", "limit", "batch", "resamples", "seed", "draws")
_USED = {
    "segmentation": (
        *("layout", "train", "test", "labelled", "subset", "recipe", "iterations"),
        *("inference", "crop", "stride"),
    ),
    "neighbours": (
        *("layout", "train", "test", "labelled", "subset", "patches", "neighbours", "temperature"),
        *("inference", "crop", "stride"),
    ),
    "depth": ("train", "test", "labelled", "recipe", "penalty", "unit", "depth", "eigen"),
    "classification": (
        *("labelled", "methods", "features", "neighbours", "temperature", "penalty"),
        "test",
    ),
    "correspondence": ("alphas",),
    "retrieval": ("test", "retrieval"),
    "explanation": ("test", "alphas", "retrieval"),
    "clustering": ("layout", "test"),
    "class-correspondence": ("layout", "test"),
    "zero-shot-segmentation": (
        *("layout", "test", "subset", "inference", "crop", "stride", "heads", "names", "texts"),
        *("prompts", "threshold"),
    ),
    "zero-shot-classification": ("test", "names", "texts", "prompts"),
}


def evaluate(
    backbone: Backbone | Sequence[Backbone],
    *,
    task: Task,
    data: str | Path,
    config: EvaluateConfig | None = None,
    progress: Progress | None = None,
) -> Table:
    """Measure what the frozen tokens of backbones are worth in a task.

    All backbones see the same images, the same draws of labelled images and the same resampled
    test images. Their weights are not changed.

    Args:
        backbone: One backbone, or several for one table.
        task: "segmentation" (linear probe), "neighbours" (dense nearest neighbours), "depth"
            (linear probe), "classification", "correspondence" under known warps,
            "class-correspondence" between photos of a class, "clustering" of one image,
            "zero-shot-segmentation" or "zero-shot-classification" by the names of the classes,
            "retrieval" by descriptors and re-ranked, or "explanation" of retrieval.
        data: The folder: masks in a known layout, rgb beside depth, class folders, or photos.
        config: Everything that can be chosen.
        progress: Called with the images done and all images, in every pass over images.

    Raises:
        ImageError: The data cannot be used; the message names the file.
        ModelError: An option does not fit.
    """
    config = config or EvaluateConfig()
    run, facts = check_data(task, Path(data), config)
    backbones = [backbone] if isinstance(backbone, Backbone) else list(backbone)
    if not backbones:
        raise ModelError("there is no backbone to evaluate; give at least one.")
    rows: list[Row] = []
    first: dict[tuple[str, int, int], Mapping[str, Found]] = {}
    for number, (name, one) in enumerate(zip(_names(backbones), backbones, strict=True)):
        for result in run(one, progress=progress):
            setting = (result.setting, result.labelled, len(result.rows[0]))
            found = found_by(result, resamples=config.resamples, seed=config.seed)
            rows.append(as_row(name, result, found, first.get(setting)))
            if not number:
                first[setting] = found
    return Table(task, {**_protocol(task, backbones, config), **facts}, tuple(rows))


def check_data(task: Task, data: Path, config: EvaluateConfig) -> tuple[Run, dict[str, Any]]:
    """Find the images and bind them to the task, before any network runs or is even loaded.

    Returns:
        What runs the task on a backbone, and facts about the data for the protocol.
    """
    if task not in TASKS:
        raise ModelError(f"task is '{task}'; use {', '.join(TASKS)}.{closest(str(task), TASKS)}")
    if task == "correspondence":
        find_images(data)
        return partial(_apply, tasks.correspond, (data,), config, {}), {}
    if task == "classification":
        train, test = _labels(data, config)
        facts = {
            "train_images": len(train),
            "classes": len(train.classes),
            "split": test is not None,
        }
        return partial(_apply, tasks.classify, (train, test), config, {}), facts
    if task == "depth":
        near, far = _depths(data, config)
        facts = {"train_images": len(near), "test_images": len(far)}
        return partial(_apply, tasks.estimate_depth, (near, far), config, {}), facts
    if task == "retrieval":
        found = read_collection(data, layout=config.layout, split=config.test)
        return partial(_apply, retrieve, (found,), config, {}), collection_facts(found)
    if task == "explanation":
        photos = read_photos(data, layout=config.layout, split=config.test)
        shown = {"kind": photos.kind, "photos": len(photos)}
        return partial(_apply, explain_numbers, (photos,), config, {}), shown
    if task in ("clustering", "class-correspondence"):
        split, facts = tasks_untrained.masks_to_test(data, config)
        untrained = tasks_untrained.cluster
        if task == "class-correspondence":
            untrained = tasks_untrained.match_classes
        return partial(_apply, untrained, (split,), config, {}), facts
    if task == "zero-shot-segmentation":
        segments, words, facts = zero_shot.masks_and_words(data, config)
        by_words = zero_shot.segment_by_words
        return partial(_apply, by_words, (segments, words), config, {}), facts
    if task == "zero-shot-classification":
        named, words, facts = zero_shot.labels_and_words(data, config)
        return partial(_apply, zero_shot.classify_by_words, (named, words), config, {}), facts
    masks = _masks(data, config)
    told: dict[str, Any] = {
        "layout": config.layout or recognised(data),
        "classes": len(masks[0].classes),
    }
    told |= {"train_images": len(masks[0]), "test_images": len(masks[1])}
    tasks.subset_of(masks[0].classes, config.subset)
    extra = {"neighbours": task == "neighbours"}
    return partial(_apply, tasks.segment, masks, config, extra), told


def _apply(
    run: Run,
    data: tuple[Any, ...],
    config: EvaluateConfig,
    extra: dict[str, Any],
    backbone: Backbone,
    *,
    progress: Progress | None,
) -> list[Result]:
    return run(backbone, *data, config, progress=progress, **extra)


def _masks(data: Path, config: EvaluateConfig) -> tuple[MaskSplit, MaskSplit]:
    train = read_masks(data, split=config.train, layout=config.layout)
    test = read_masks(data, split=config.test or "val", layout=config.layout)
    _apart(train, test)
    return train, test.chosen(spread(len(test), config.limit))


def _depths(data: Path, config: EvaluateConfig) -> tuple[DepthSplit, DepthSplit]:
    if config.recipe == "paper":
        raise ModelError("depth has no recipe 'paper' with augmentation; use 'sgd' or 'fast'.")
    read = partial(read_depths, data, unit=config.unit, limits=config.depth)
    train, test = read(split=config.train), read(split=config.test or "test")
    _apart(train, test)
    return train, test.chosen(spread(len(test), config.limit))


def _labels(data: Path, config: EvaluateConfig) -> tuple[LabelSplit, LabelSplit | None]:
    found = label_splits(data)
    if found is None:
        if config.limit is not None:
            raise ModelError("limit needs a folder with train/ and val/; leave it out for others.")
        return read_labels(data), None
    train = read_labels(data, split=found[0])
    test = aligned(read_labels(data, split=config.test or found[1]), train.classes)
    _apart(train, test)
    return train, test.chosen(spread(len(test), config.limit))


def _apart(train: Split, test: Split) -> None:
    """Refuse to measure on what was learned from."""
    both = set(train.images) & set(test.images)
    if both:
        raise ImageError(f"'{min(both)}' is in both splits, '{train.name}' and '{test.name}'.")


def _protocol(task: Task, backbones: Sequence[Backbone], config: EvaluateConfig) -> dict[str, Any]:
    """Name every option that the numbers depend on, with the sizes really used."""
    options = dataclasses.asdict(config)
    told = {name: options[name] for name in (*_USED[task], *_COMMON)}
    if "recipe" in told and config.recipe != "fast":
        told["iterations"] = config.steps
    if "inference" in told and told["inference"] is None:
        told["inference"] = "slide" if task == "zero-shot-segmentation" else "whole"
    told["size"] = [list(one.fitting_size(config.size)) for one in backbones]
    return {key: list(value) if isinstance(value, tuple) else value for key, value in told.items()}


def _names(backbones: Sequence[Backbone]) -> list[str]:
    """Tell backbones of one name apart."""
    names: list[str] = []
    for one in backbones:
        count = sum(name == one.name or name.startswith(f"{one.name} (") for name in names)
        names.append(one.name if not count else f"{one.name} ({count + 1})")
    return names
