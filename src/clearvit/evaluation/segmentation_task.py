"""Segmentation from labelled images: by a linear probe, or by the nearest labelled patches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit
from clearvit.evaluation.config import (
    KnnSegmentationConfig,
    LabelledMaskConfig,
    SegmentationConfig,
)
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import (
    Prepared,
    Sample,
    check_disjoint,
    extract_split,
    find_subset,
    group_results,
    read_test_masks,
    sample_labelled,
)
from clearvit.probes.features import Features, use_whole_image
from clearvit.probes.knn import fit_knn
from clearvit.probes.metrics import segmentation_metrics
from clearvit.probes.segmentation import (
    Scorer,
    SlidingWindows,
    collect_patches,
    measure_sliding,
    measure_whole,
)
from clearvit.probes.sgd import STEPS, pixel_batches, train_fast_head, train_head
from clearvit.progress import Progress

TEMPERATURE = 0.02  # of the neighbors' votes, as in Hummingbird
Fit = Callable[[Features, MaskSplit, Sample, Backbone], Scorer]


def prepare_linear(data: Path, config: SegmentationConfig) -> Prepared:
    """Read the masks; run with a linear probe."""
    prepared = _prepare(data, config, f"linear, {config.probe}", partial(_fit_probe, config=config))
    if config.probe == "sgd":
        prepared.facts["iterations"] = config.iterations or STEPS
    return prepared


def prepare_knn(data: Path, config: KnnSegmentationConfig) -> Prepared:
    """Read the masks; run with the nearest labelled patches."""
    prepared = _prepare(data, config, "kNN", partial(_fit_knn, config=config))
    prepared.facts["memory"] = config.memory
    return prepared


def _prepare(data: Path, config: LabelledMaskConfig, name: str, fit: Fit) -> Prepared:
    test, facts = read_test_masks(data, config)
    train = read_masks(data, split="train", layout=facts["layout"])
    check_disjoint(train, test)
    find_subset(train.classes, config.subset)
    run = partial(_run, splits=(train, test), config=config, name=name, fit=fit)
    return Prepared(run, {**facts, "train_images": len(train)})


def _run(
    backbone: Backbone,
    progress: Progress | None,
    *,
    splits: tuple[MaskSplit, MaskSplit],
    config: LabelledMaskConfig,
    name: str,
    fit: Fit,
) -> list[Result]:
    train, test = splits
    whole = use_whole_image(backbone)
    needed, samples = sample_labelled(len(train), config)
    train = train.select(needed)
    with extract_split(whole, train, config, progress) as features:
        scorers = (fit(features, train, sample, whole) for sample in samples)
        rows: list[Floats] = []
        if config.inference == "slide":
            windows = SlidingWindows(config.size, config.crop, config.stride, config.batch)
            rows = measure_sliding(list(scorers), whole, test, windows, progress)
        else:
            with extract_split(whole, test, config, progress) as tested:
                for scorer in scorers:  # one at a time: a bank of patches is large
                    rows += measure_whole([scorer], tested, test)
    subset = find_subset(train.classes, config.subset)
    summary = partial(segmentation_metrics, classes=train.classes, subset=subset)
    return group_results(samples, rows, name, summary)


def _fit_probe(
    features: Features,
    split: MaskSplit,
    sample: Sample,
    backbone: Backbone,
    config: SegmentationConfig,
) -> Scorer:
    chosen, seed, device = sample.indices, sample.seed, backbone.device
    if config.probe == "fast":
        steps = config.iterations
        return train_fast_head(features, split, chosen, steps=steps, seed=seed, device=device)
    batches = pixel_batches(features, split, chosen, seed=seed, device=device)
    steps = config.iterations or STEPS
    return train_head(batches, classes=len(split.classes), steps=steps, seed=seed)


def _fit_knn(
    features: Features,
    split: MaskSplit,
    sample: Sample,
    backbone: Backbone,
    config: KnnSegmentationConfig,
) -> Scorer:
    tokens, labels = collect_patches(
        features, split, sample.indices, limit=config.memory, seed=sample.seed
    )
    return fit_knn(tokens, labels, k=config.k, temperature=TEMPERATURE)
