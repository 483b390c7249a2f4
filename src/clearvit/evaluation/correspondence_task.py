"""Correspondence without training: under known warps, and between images of one class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.splits import MaskSplit
from clearvit.evaluation.config import GeometricCorrespondenceConfig, SemanticCorrespondenceConfig
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import Prepared, extract_split, read_test_masks
from clearvit.images import ImageSource, find_images
from clearvit.probes.correspondence import measure_pairs, measure_warps
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.progress import Progress


def prepare_geometric(data: Path, config: GeometricCorrespondenceConfig) -> Prepared:
    """Find the images to warp."""
    images = find_images(data)
    chosen = [images[i] for i in select_evenly(len(images), config.limit)]
    facts = {"test_images": len(chosen)}
    return Prepared(partial(_run_geometric, images=chosen, config=config), facts)


def _run_geometric(
    backbone: Backbone,
    progress: Progress | None,
    *,
    images: Sequence[ImageSource],
    config: GeometricCorrespondenceConfig,
) -> list[Result]:
    whole = use_whole_image(backbone)
    measure = partial(measure_warps, whole, images, size=config.size, alphas=config.alphas)
    seeds = range(config.seed, config.seed + config.seeds)
    rows = [measure(seed=seed, progress=progress) for seed in seeds]
    return [Result("affine warps", 0, rows, partial(_pck, alphas=config.alphas))]


def _pck(sums: Floats, alphas: Sequence[float]) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., -1], 1)
    return {f"PCK@{alpha:g}": sums[..., i] / count for i, alpha in enumerate(alphas)}


def prepare_semantic(data: Path, config: SemanticCorrespondenceConfig) -> Prepared:
    """Read the masks of the test split."""
    split, facts = read_test_masks(data, config)
    return Prepared(partial(_run_semantic, split=split, config=config), facts)


def _run_semantic(
    backbone: Backbone,
    progress: Progress | None,
    *,
    split: MaskSplit,
    config: SemanticCorrespondenceConfig,
) -> list[Result]:
    with extract_split(use_whole_image(backbone), split, config, progress) as features:
        seeds = range(config.seed, config.seed + config.seeds)
        rows = [measure_pairs(features, split, seed=seed) for seed in seeds]
    return [Result("nearest patch", 0, rows, _same_class)]


def _same_class(sums: Floats) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., 2], 1)
    return {"same class": sums[..., 0] / count, "at random": sums[..., 1] / count}
