"""Clustering: k-means over the patches of one image, without any label."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.splits import MaskSplit
from clearvit.evaluation.config import ClusteringConfig
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import Prepared, extract_split, read_test_masks
from clearvit.probes.clustering import measure_clusters
from clearvit.probes.features import use_whole_image
from clearvit.progress import Progress


def prepare(data: Path, config: ClusteringConfig) -> Prepared:
    """Read the masks of the test split."""
    split, facts = read_test_masks(data, config)
    return Prepared(partial(_run, split=split, config=config), facts)


def _run(
    backbone: Backbone, progress: Progress | None, *, split: MaskSplit, config: ClusteringConfig
) -> list[Result]:
    with extract_split(use_whole_image(backbone), split, config, progress) as features:
        seeds = range(config.seed, config.seed + config.seeds)
        rows = [measure_clusters(features, split, seed=seed) for seed in seeds]
    return [Result("k-means, one image", 0, rows, _mean_iou)]


def _mean_iou(sums: Floats) -> Mapping[str, Floats]:
    return {"mIoU": sums[..., 0] / np.maximum(sums[..., 1], 1)}
