"""Zero-shot tasks: classes are named, not learned, with the text tower of a CLIP-like model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone, TextTower
from clearvit.backbones.dense_clip import HEADS, DenseClip, Head, dense_clip
from clearvit.backbones.load import load
from clearvit.dense.class_names import queries
from clearvit.dense.classification import aligned
from clearvit.dense.features import extracted, spread, whole_picture
from clearvit.dense.folders import label_splits, read_labels
from clearvit.dense.layouts import read_masks, recognised
from clearvit.dense.metrics import segmentation_metrics
from clearvit.dense.prompts import TextClasses, check_prompts, embedded, read_names
from clearvit.dense.segmentation import measure_sliding, measure_whole
from clearvit.dense.splits import LabelSplit, MaskSplit, read_photo
from clearvit.dense.zero_shot import SCALE, WNIDS, benchmark_of
from clearvit.errors import ModelError, closest
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.table import Result
from clearvit.evaluate.tasks import subset_of
from clearvit.progress import Progress

Words = tuple[tuple[str, ...], ...]
Floats = NDArray[np.float64]
DEFAULT_HEAD: Head = "naclip"  # the best head without training in the tables of PH-Reg


def masks_and_words(data: Path, config: EvaluateConfig) -> tuple[MaskSplit, Words, dict[str, Any]]:
    """Find the test split of a folder with masks, and what its classes are called.

    Returns:
        The split, the words of each class, and facts for the protocol.
    """
    for head in config.heads:
        if head not in HEADS:
            raise ModelError(f"no head '{head}'; use {', '.join(HEADS)}.{closest(head, HEADS)}")
    layout = config.layout or recognised(data)
    split = read_masks(data, split=config.test or "val", layout=layout)
    split = split.chosen(spread(len(split), config.limit))
    subset_of(split.classes, config.subset)
    benchmark = benchmark_of(layout)
    words = _words(split.classes, config, objects_only=benchmark.objects_only)
    facts: dict[str, Any] = {"layout": layout, "classes": len(words), "test_images": len(split)}
    facts |= {"prompts": len(_prompts(config)), "scale": SCALE, "threshold": _least(layout, config)}
    if (config.inference or "slide") == "slide":
        sliding = benchmark.sliding(config.size, config.crop, config.stride, config.batch)
        sizes = {"size": sliding.size, "crop": sliding.crop, "stride": sliding.stride}
        facts |= {key: value for key, value in sizes.items() if value is not None}
    return split, words, facts


def segment_by_words(
    backbone: Backbone,
    split: MaskSplit,
    words: Words,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Segment with the nearest word of each patch; one result per dense head."""
    named = _with_text(backbone, config)
    assert named.text is not None
    layout = config.layout or recognised(split.root)
    classes: TextClasses | None = None
    results = []
    for head in _heads(named, config):
        dense = dense_clip(named, head)  # type: ignore[arg-type] # it refuses what is no ViT
        classes = classes or embedded(named.text, words, _prompts(config))
        _check_space(dense, classes)
        rows = _measured(dense, split, classes, layout, config, progress)
        summary = partial(
            segmentation_metrics,
            classes=split.classes,
            subset=subset_of(split.classes, config.subset),
        )
        results.append(Result(f"zero-shot, {head}", 0, [rows], summary))
    return results


def _measured(
    dense: DenseClip,
    split: MaskSplit,
    classes: TextClasses,
    layout: str,
    config: EvaluateConfig,
    progress: Progress | None,
) -> Floats:
    shown = whole_picture(dense)
    decide = partial(classes.labels, scale=SCALE, threshold=_least(layout, config))
    if config.inference != "whole":
        sliding = benchmark_of(layout).sliding(
            config.size, config.crop, config.stride, config.batch
        )
        return measure_sliding([classes], shown, split, sliding, progress, decide=decide)[0]
    options = {"size": config.size, "batch": config.batch, "cache": config.cache}
    with extracted(shown, split, **options, progress=progress) as features:  # type: ignore[arg-type]
        return measure_whole([classes], features, split, decide=decide)[0]


def labels_and_words(
    data: Path, config: EvaluateConfig
) -> tuple[LabelSplit, Words, dict[str, Any]]:
    """Find the images to classify, all of a folder without splits, and the words of each class."""
    found = label_splits(data)
    if found is None:
        split = read_labels(data)
    else:
        split = read_labels(data, split=config.test or found[1])
        split = aligned(split, read_labels(data, split=found[0]).classes)
    split = split.chosen(spread(len(split), config.limit))
    words = _words(_imagenet(split.classes), config)
    facts = {"classes": len(words), "test_images": len(split), "prompts": len(_prompts(config))}
    return split, words, facts


def classify_by_words(
    backbone: Backbone,
    split: LabelSplit,
    words: Words,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Classify by the word nearest to the embedding of the image."""
    named = _with_text(backbone, config)
    assert named.text is not None
    classes = embedded(named.text, words, _prompts(config))
    rows: list[Tensor] = []
    for start in range(0, len(split), config.batch):
        some = range(start, min(start + config.batch, len(split)))
        photos = [read_photo(split.images[i]) for i in some]
        vectors = named.embed(photos, size=config.size, batch=config.batch).cpu()
        _check_space(named, classes, width=vectors.shape[1])
        rows.append(_ranked(classes.best(classes(vectors)), [split.labels[i] for i in some]))
        if progress:
            progress(some.stop, len(split))
    return [Result("zero-shot", 0, [torch.cat(rows).numpy()], _hit_rates)]


def _ranked(scores: Tensor, labels: Sequence[int]) -> Tensor:
    """Whether the class is the first and among the first five, and 1, (B, 3)."""
    truth = torch.tensor(labels)[:, None]
    order = scores.topk(min(5, scores.shape[1]), dim=1).indices == truth
    hits = torch.stack([order[:, 0], order.any(1), torch.ones(len(order), dtype=torch.bool)], 1)
    return hits.double()


def _hit_rates(sums: Floats) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., 2], 1)
    return {"top-1": 100 * sums[..., 0] / count, "top-5": 100 * sums[..., 1] / count}


def _heads(backbone: Backbone, config: EvaluateConfig) -> tuple[Head, ...]:
    """Take the heads asked for, or the one that a cured model was trained with."""
    own = backbone.head if isinstance(backbone, DenseClip) else DEFAULT_HEAD
    return config.heads or (own,)


def _words(classes: Sequence[str], config: EvaluateConfig, *, objects_only: bool = False) -> Words:
    check_prompts(config.prompts)
    if config.names is not None:
        return read_names(config.names, len(classes))
    if all(re.fullmatch(r"class \d+", name) for name in classes):
        raise ModelError(
            "the classes of this folder have no names. Write them to classes.txt in it, one line"
            " each, or give a file with names=."
        )
    return queries(classes, objects_only=objects_only)


def _imagenet(classes: Sequence[str]) -> Sequence[str]:
    """Replace the 1000 WordNet numbers of ImageNet by names."""
    if len(classes) != WNIDS or not all(re.fullmatch(r"n\d{8}", name) for name in classes):
        return classes
    from clearvit.backbones.openclip import imagenet_names

    return [name.replace(",", "") for name in imagenet_names()]


def _prompts(config: EvaluateConfig) -> tuple[str, ...]:
    if config.prompts:
        return config.prompts
    from clearvit.backbones.openclip import imagenet_prompts

    return imagenet_prompts()


def _least(layout: str, config: EvaluateConfig) -> float:
    return benchmark_of(layout).threshold if config.threshold is None else config.threshold


def _with_text(backbone: Backbone, config: EvaluateConfig) -> Backbone:
    """Give a model its text tower, from the model that `texts` names if it has none of its own."""
    text: TextTower | None = backbone.text
    if config.texts is not None:
        text = load(config.texts).text
    if text is None:
        raise ModelError(
            f"'{config.texts or backbone.name}' has no text tower, so it cannot tell what a name"
            " looks like. Use a CLIP-like model, 'openclip:ARCH/TAG'; for a cured copy of one,"
            " which is saved without it, name the original: texts='openclip:ARCH/TAG'."
        )
    named = copy.copy(backbone)
    named.text = text
    return named


def _check_space(backbone: Backbone, classes: TextClasses, width: int | None = None) -> None:
    channels = width or backbone.width
    if channels != classes.directions.shape[1]:
        raise ModelError(
            f"'{backbone.name}' embeds in {channels} channels, the texts in"
            f" {classes.directions.shape[1]}: they come from different models."
        )
