"""Zero-shot tasks: classes are given by their names, with the text tower of a CLIP-like model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.clip_heads import DenseClip, dense_clip
from clearvit.backbones.load import load
from clearvit.datasets.class_names import text_queries
from clearvit.datasets.folders import find_label_splits, read_labels
from clearvit.datasets.splits import LabelSplit, MaskSplit, load_image
from clearvit.errors import ModelError
from clearvit.evaluation.config import (
    ZeroShotClassificationConfig,
    ZeroShotConfig,
    ZeroShotSegmentationConfig,
)
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.task_data import Prepared, extract_split, find_subset, read_test_masks
from clearvit.evaluation.zero_shot_benchmarks import (
    IMAGENET_CLASSES,
    SCALE,
    Benchmark,
    find_benchmark,
)
from clearvit.options import ClipHead
from clearvit.probes.classification import align_classes
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.metrics import segmentation_metrics
from clearvit.probes.prompts import TextClasses, check_prompts, embed_classes, read_class_words
from clearvit.probes.segmentation import measure_sliding, measure_whole
from clearvit.progress import Progress

Words = tuple[tuple[str, ...], ...]
DEFAULT_HEAD: ClipHead = "naclip"  # the best head without training in the tables of PH-Reg


def prepare_segmentation(data: Path, config: ZeroShotSegmentationConfig) -> Prepared:
    """Read the masks of the test split and the words of each class."""
    split, facts = read_test_masks(data, config)
    find_subset(split.classes, config.subset)
    benchmark = find_benchmark(facts["layout"])
    words = _class_words(split.classes, config, objects_only=benchmark.objects_only)
    threshold = benchmark.threshold if config.threshold is None else config.threshold
    facts |= {"prompts": len(_prompts(config)), "scale": SCALE, "threshold": threshold}
    if config.inference == "slide":
        windows = benchmark.windows(config)
        sizes = {"size": windows.size, "crop": windows.crop, "stride": windows.stride}
        facts |= {key: value for key, value in sizes.items() if value is not None}
    run = partial(_run_segmentation, split=split, words=words, benchmark=benchmark, config=config)
    return Prepared(run, facts)


def _run_segmentation(
    backbone: Backbone,
    progress: Progress | None,
    *,
    split: MaskSplit,
    words: Words,
    benchmark: Benchmark,
    config: ZeroShotSegmentationConfig,
) -> list[Result]:
    """Segment by the nearest word of each patch; one result per dense head."""
    named = _with_text(backbone, config)
    assert named.text is not None
    own = named.head if isinstance(named, DenseClip) else DEFAULT_HEAD
    subset = find_subset(split.classes, config.subset)
    summary = partial(segmentation_metrics, classes=split.classes, subset=subset)
    classes: TextClasses | None = None
    results = []
    for head in config.heads or (own,):
        dense = dense_clip(named, head)  # type: ignore[arg-type] # it refuses what is no ViT
        classes = classes or embed_classes(named.text, words, _prompts(config))
        _check_space(dense, classes)
        rows = _measure(dense, split, classes, benchmark, config, progress)
        results.append(Result(f"zero-shot, {head}", 0, [rows], summary))
    return results


def _measure(
    dense: DenseClip,
    split: MaskSplit,
    classes: TextClasses,
    benchmark: Benchmark,
    config: ZeroShotSegmentationConfig,
    progress: Progress | None,
) -> Floats:
    whole = use_whole_image(dense)
    threshold = benchmark.threshold if config.threshold is None else config.threshold
    decide = partial(classes.labels, scale=SCALE, threshold=threshold)
    if config.inference == "slide":
        windows = benchmark.windows(config)
        return measure_sliding([classes], whole, split, windows, progress, decide=decide)[0]
    with extract_split(whole, split, config, progress) as features:
        return measure_whole([classes], features, split, decide=decide)[0]


def prepare_classification(data: Path, config: ZeroShotClassificationConfig) -> Prepared:
    """Find the images to classify, all of a folder without splits, and the words of each class."""
    names = find_label_splits(data)
    if names is None:
        split = read_labels(data)
    else:
        split = read_labels(data, split=config.split or names[1])
        split = align_classes(split, read_labels(data, split=names[0]).classes)
    split = split.select(select_evenly(len(split), config.limit))
    words = _class_words(_imagenet_names(split.classes), config)
    facts = {"classes": len(words), "test_images": len(split), "prompts": len(_prompts(config))}
    return Prepared(partial(_run_classification, split=split, words=words, config=config), facts)


def _run_classification(
    backbone: Backbone,
    progress: Progress | None,
    *,
    split: LabelSplit,
    words: Words,
    config: ZeroShotClassificationConfig,
) -> list[Result]:
    """Classify by the word nearest to the embedding of the image."""
    named = _with_text(backbone, config)
    assert named.text is not None
    classes = embed_classes(named.text, words, _prompts(config))
    rows: list[Tensor] = []
    for start in range(0, len(split), config.batch):
        some = range(start, min(start + config.batch, len(split)))
        images = [load_image(split.images[i]) for i in some]
        vectors = named.embed(images, size=config.size, batch=config.batch).cpu()
        _check_space(named, classes, width=vectors.shape[1])
        scores = classes.class_scores(classes(vectors))
        rows.append(_count_hits(scores, [split.labels[i] for i in some]))
        if progress:
            progress("images", some.stop, len(split))
    return [Result("zero-shot", 0, [torch.cat(rows).numpy()], _accuracy)]


def _count_hits(scores: Tensor, labels: Sequence[int]) -> Tensor:
    """Give whether the class is the first and among the first five, and 1, (B, 3)."""
    truth = torch.tensor(labels)[:, None]
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == truth
    return torch.stack([hits[:, 0], hits.any(1), torch.ones_like(hits[:, 0])], 1).double()


def _accuracy(sums: Floats) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., 2], 1)
    return {"top-1": 100 * sums[..., 0] / count, "top-5": 100 * sums[..., 1] / count}


def _class_words(
    classes: Sequence[str], config: ZeroShotConfig, *, objects_only: bool = False
) -> Words:
    check_prompts(config.prompts)
    if config.names is not None:
        return read_class_words(config.names, len(classes))
    if all(re.fullmatch(r"class \d+", name) for name in classes):
        raise ModelError(
            "the classes of this folder have no names. Write them to classes.txt in it, one line"
            " each, or give a file with names=."
        )
    return text_queries(classes, objects_only=objects_only)


def _imagenet_names(classes: Sequence[str]) -> Sequence[str]:
    """Replace the 1000 WordNet numbers of ImageNet by names."""
    numbers = all(re.fullmatch(r"n\d{8}", name) for name in classes)
    if len(classes) != IMAGENET_CLASSES or not numbers:
        return classes
    from clearvit.backbones.sources.openclip import imagenet_names

    return [name.replace(",", "") for name in imagenet_names()]


def _prompts(config: ZeroShotConfig) -> tuple[str, ...]:
    if config.prompts:
        return config.prompts
    from clearvit.backbones.sources.openclip import imagenet_prompts

    return imagenet_prompts()


def _with_text(backbone: Backbone, config: ZeroShotConfig) -> Backbone:
    """Give a backbone its text tower, that of `text_model` if one is named."""
    text: Any = backbone.text if config.text_model is None else load(config.text_model).text
    if text is None:
        raise ModelError(
            f"'{config.text_model or backbone.name}' has no text tower, so it cannot embed class"
            " names. Use a CLIP-like model, 'openclip:ARCH/TAG'; for a cured copy of one, which is"
            " saved without it, name the original: text_model='openclip:ARCH/TAG'."
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
