"""Classification of whole images: kNN, logistic regression or prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.folders import find_label_splits, read_labels
from clearvit.datasets.splits import LabelSplit
from clearvit.errors import OptionError
from clearvit.evaluation.config import ClassificationConfig
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import Prepared, check_disjoint, extract_split
from clearvit.probes.classification import (
    Classifier,
    align_classes,
    pool_features,
    sample_per_class,
)
from clearvit.probes.features import select_evenly
from clearvit.progress import Progress

Labelled = tuple[Tensor, Tensor]  # features (M, C) and classes (M,)


def prepare(data: Path, config: ClassificationConfig) -> Prepared:
    """Read the class folders; without splits, each seed makes a split of its own."""
    names = find_label_splits(data)
    test: LabelSplit | None = None
    if names is None:
        if config.limit is not None:
            raise OptionError(
                "limit needs a folder with train/ and val/; leave it out for others.", "limit"
            )
        train = read_labels(data)
    else:
        train = read_labels(data, split=names[0])
        test = align_classes(read_labels(data, split=config.split or names[1]), train.classes)
        check_disjoint(train, test)
        test = test.select(select_evenly(len(test), config.limit))
    facts = {"train_images": len(train), "classes": len(train.classes), "has_splits": bool(test)}
    return Prepared(partial(_run, train=train, test=test, config=config), facts)


def _run(
    backbone: Backbone,
    progress: Progress | None,
    *,
    train: LabelSplit,
    test: LabelSplit | None,
    config: ClassificationConfig,
) -> list[Result]:
    known = _pool(backbone, train, config, progress)
    held_out = None if test is None else _pool(backbone, test, config, progress)
    results = []
    for count in config.num_labelled:
        seeds = 1 if count is None and test is not None else config.seeds
        splits = [
            _split(known, held_out, count, seed) for seed in range(config.seed, config.seed + seeds)
        ]
        for method in config.methods:
            classes, penalty = len(train.classes), config.penalty
            classifier = Classifier(method, classes, config.k, config.temperature, penalty)
            rows = [_score(classifier, *split) for split in splits]
            results.append(Result(method, len(splits[0][0][0]), rows, _accuracy))
    return results


def _pool(
    backbone: Backbone, split: LabelSplit, config: ClassificationConfig, progress: Progress | None
) -> Labelled:
    with extract_split(backbone, split, config, progress) as features:
        pooled = pool_features(features, config.pooling, model=backbone.name)
    return pooled, torch.tensor(split.labels)


def _split(
    known: Labelled, held_out: Labelled | None, count: int | None, seed: int
) -> tuple[Labelled, Labelled]:
    """Sample the images to learn from; without a test split, the others are tested on."""
    features, labels = known
    chosen = sample_per_class(labels.tolist(), count, seed, leave_rest=held_out is None)
    if held_out is None:
        others = sorted(set(range(len(labels))) - set(chosen))
        held_out = features[others], labels[others]
    return (features[chosen], labels[chosen]), held_out


def _score(classifier: Classifier, train: Labelled, test: Labelled) -> Floats:
    """Give 1 or 0 for each test image that is right or wrong, and 1, (V, 2)."""
    correct = (classifier.predict(*train, test[0]) == test[1]).double()
    return torch.stack([correct, torch.ones_like(correct)], dim=1).numpy()


def _accuracy(sums: Floats) -> Mapping[str, Floats]:
    return {"top-1": 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)}
