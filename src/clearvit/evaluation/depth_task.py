"""Depth by a linear probe: ridge regression to log depth, or 256 trained bins."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.folders import read_depths
from clearvit.datasets.splits import DepthSplit
from clearvit.evaluation.config import DepthConfig
from clearvit.evaluation.evaluation_table import Result
from clearvit.evaluation.task_data import (
    Prepared,
    check_disjoint,
    extract_split,
    group_results,
    sample_labelled,
)
from clearvit.probes.depth import Depth, depth_batches, fit_bins, fit_log_depth, measure_depth
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.metrics import depth_metrics
from clearvit.progress import Progress


def prepare(data: Path, config: DepthConfig) -> Prepared:
    """Read the depth maps."""
    limits = (config.min_depth, config.max_depth)
    read = partial(read_depths, data, unit=config.unit, limits=limits)
    train, test = read(split="train"), read(split=config.split or "test")
    check_disjoint(train, test)
    test = test.select(select_evenly(len(test), config.limit))
    facts = {"train_images": len(train), "test_images": len(test)}
    return Prepared(partial(_run, train=train, test=test, config=config), facts)


def _run(
    backbone: Backbone,
    progress: Progress | None,
    *,
    train: DepthSplit,
    test: DepthSplit,
    config: DepthConfig,
) -> list[Result]:
    whole = use_whole_image(backbone)
    needed, samples = sample_labelled(len(train), config)
    train, fast = train.select(needed), config.probe == "fast"
    rows = []
    with (
        extract_split(whole, train, config, progress) as features,
        extract_split(whole, test, config, progress) as tested,
    ):
        for sample in samples:
            chosen, seed = sample.indices, sample.seed
            predictor: Depth
            if fast:
                predictor = fit_log_depth(features, train, chosen, config.penalty)
            else:
                batches = depth_batches(features, train, chosen, seed=seed, device=whole.device)
                limits = (config.min_depth, config.max_depth)
                predictor = fit_bins(batches, limits, steps=config.iterations, seed=seed)
            rows.append(
                measure_depth(predictor, tested, test, cls=not fast, eigen_crop=config.eigen_crop)
            )
    name = "linear, log depth" if fast else "linear, 256 bins"
    return group_results(samples, rows, name, depth_metrics)
