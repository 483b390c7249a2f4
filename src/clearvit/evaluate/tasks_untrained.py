"""Tasks on masks that fit nothing to them: clusters of one image, matches between two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.backbones.backbone import Backbone
from clearvit.dense.class_matches import measure_pairs
from clearvit.dense.clustering import measure_clusters
from clearvit.dense.features import extracted, spread, whole_picture
from clearvit.dense.layouts import read_masks, recognised
from clearvit.dense.splits import MaskSplit
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.table import Result
from clearvit.progress import Progress

Floats = NDArray[np.float64]


def masks_to_test(data: Path, config: EvaluateConfig) -> tuple[MaskSplit, dict[str, Any]]:
    """Find the test split, and facts about it for the protocol."""
    layout = config.layout or recognised(data)
    split = read_masks(data, split=config.test or "val", layout=layout)
    split = split.chosen(spread(len(split), config.limit))
    facts = {"layout": layout, "classes": len(split.classes), "test_images": len(split)}
    return split, facts


def cluster(
    backbone: Backbone,
    split: MaskSplit,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Cluster the patches of each image; draws are draws of the first centres."""
    return _measured(
        "k-means, one image", measure_clusters, _iou, backbone, split, config, progress
    )


def match_classes(
    backbone: Backbone,
    split: MaskSplit,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Match patches between photos that show one class; draws are draws of the pairs."""
    return _measured("nearest patch", measure_pairs, _same, backbone, split, config, progress)


def _measured(
    setting: str,
    measure: Any,
    summary: Any,
    backbone: Backbone,
    split: MaskSplit,
    config: EvaluateConfig,
    progress: Progress | None,
) -> list[Result]:
    options: dict[str, Any] = {"size": config.size, "batch": config.batch, "cache": config.cache}
    with extracted(whole_picture(backbone), split, **options, progress=progress) as features:
        rows = [measure(features, split, seed=config.seed + draw) for draw in range(config.draws)]
    return [Result(setting, 0, rows, summary)]


def _iou(sums: Floats) -> Mapping[str, Floats]:
    return {"mIoU": sums[..., 0] / np.maximum(sums[..., 1], 1)}


def _same(sums: Floats) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., 2], 1)
    return {"same class": sums[..., 0] / count, "by chance": sums[..., 1] / count}
