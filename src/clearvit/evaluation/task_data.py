"""What tasks share: prepared data, samples of labelled images, features of a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.masks import detect_layout, read_masks
from clearvit.datasets.splits import MaskSplit, Split
from clearvit.errors import ImageError
from clearvit.evaluation.config import (
    DepthConfig,
    EvaluateConfig,
    LabelledMaskConfig,
    MaskConfig,
    ZeroShotSegmentationConfig,
)
from clearvit.evaluation.evaluation_table import Floats, Result, Summary
from clearvit.probes.features import Features, extract_features, sample_images, select_evenly
from clearvit.progress import Progress

Run = Callable[[Backbone, Progress | None], list[Result]]


@dataclass(frozen=True)
class Prepared:
    """A task with its data: what measures a backbone, and facts about the data for the protocol."""

    run: Run
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Labelled images to learn from."""

    count: int | None  # as asked; None is all
    seed: int
    indices: list[int]


def sample_labelled(
    total: int, config: LabelledMaskConfig | DepthConfig
) -> tuple[list[int], list[Sample]]:
    """Sample labelled images for each number asked for, once per seed; all of them once.

    Returns:
        The images that any sample needs, and the samples as indices among these.
    """
    samples = []
    for count in config.num_labelled:
        seeds = 1 if count is None or count >= total else config.seeds
        for seed in range(config.seed, config.seed + seeds):
            samples.append(Sample(count, seed, sample_images(total, count, seed)))
    needed = sorted({index for sample in samples for index in sample.indices})
    rank = {index: i for i, index in enumerate(needed)}
    return needed, [Sample(s.count, s.seed, [rank[i] for i in s.indices]) for s in samples]


def group_results(
    samples: Sequence[Sample], rows: Sequence[Floats], name: str, summary: Summary
) -> list[Result]:
    """Make one result per number of labelled images."""
    results = []
    for count in dict.fromkeys(sample.count for sample in samples):
        group = [i for i, sample in enumerate(samples) if sample.count == count]
        labelled = len(samples[group[0]].indices)
        results.append(Result(name, labelled, [rows[i] for i in group], summary))
    return results


def read_test_masks(
    data: Path, config: MaskConfig | ZeroShotSegmentationConfig
) -> tuple[MaskSplit, dict[str, Any]]:
    """Find the test split of images with masks, and facts about it for the protocol."""
    layout = config.layout or detect_layout(data)
    split = read_masks(data, split=config.split or "val", layout=layout)
    split = split.select(select_evenly(len(split), config.limit))
    return split, {"layout": layout, "classes": len(split.classes), "test_images": len(split)}


def check_disjoint(train: Split, test: Split) -> None:
    """Refuse to test on training images."""
    both = set(train.images) & set(test.images)
    if both:
        raise ImageError(f"'{min(both)}' is in both splits, '{train.name}' and '{test.name}'.")


def find_subset(classes: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Find the indices of some classes."""
    for name in names:
        if name not in classes:
            raise ImageError(f"subset names '{name}'; the classes are {', '.join(classes)}.")
    return tuple(classes.index(name) for name in names)


def extract_split(
    backbone: Backbone, split: Split, config: EvaluateConfig, progress: Progress | None
) -> AbstractContextManager[Features]:
    """Extract the features of a split as the options of a task say."""
    return extract_features(
        backbone,
        split,
        size=config.size,
        batch=config.batch,
        cache=getattr(config, "cache", None),
        progress=progress,
    )
