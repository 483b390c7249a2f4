"""Segmentation from frozen tokens: labelled patches, and the evaluation of any patch classifier.

As in the linear-probing protocol of DINOv2 (arXiv 2304.07193), scores of patches are upsampled
bilinearly; `sgd` trains its head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import round_to_patches
from clearvit.datasets.splits import MaskSplit, load_image
from clearvit.errors import ImageError
from clearvit.options import Size
from clearvit.precision import autocast
from clearvit.probes.features import Features
from clearvit.probes.metrics import segmentation_counts
from clearvit.probes.patches import patch_labels
from clearvit.progress import Progress

Scorer = Callable[[Tensor], Tensor]
"""Maps patch tokens (N, C) to scores of the classes (N, K)."""
Decide = Callable[[Tensor], Tensor]
"""Maps scores (K, height, width) at the size of the mask to classes (height, width)."""
Grid = tuple[int, int]
Window = tuple[int, int, int, int]  # top, left, bottom, right in pixels, ends exclusive


@dataclass(frozen=True)
class SlidingWindows:
    """How windows slide over an image whose shorter side is `size`; all but the batch in pixels."""

    size: int | tuple[int, int] | None = None  # None is the backbone's own
    crop: int | None = None  # side of a window; None is the shorter side of `size`
    stride: int | None = None  # None is 341 / 518 of the crop
    batch: int = 8  # windows per forward pass


def _starts(length: int, crop: int, stride: int) -> list[int]:
    """Give the first pixel of each window along one side; the last one ends at the border."""
    if crop >= length:
        return [0]
    count = -(-(length - crop) // stride) + 1
    return [min(i * stride, length - crop) for i in range(count)]


def sliding_windows(size: tuple[int, int], crop: tuple[int, int], stride: int) -> list[Window]:
    """Cover (height, width) with windows, row by row."""
    height, width = min(crop[0], size[0]), min(crop[1], size[1])
    return [
        (top, left, top + height, left + width)
        for top in _starts(size[0], height, stride)
        for left in _starts(size[1], width, stride)
    ]


def average_windows(parts: Iterable[tuple[Window, Tensor]], size: tuple[int, int]) -> Tensor:
    """Average the scores (K, height, width) of overlapping windows over the whole image."""
    total: Tensor | None = None
    counts = torch.zeros(size)
    for (top, left, bottom, right), scores in parts:
        if total is None:
            total = torch.zeros(len(scores), *size)
        total[:, top:bottom, left:right] += scores.cpu()
        counts[top:bottom, left:right] += 1
    if total is None or not bool(counts.all()):
        raise ValueError("the windows do not cover the image")
    return total / counts


def collect_patches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, limit: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Collect patches of some images: tokens (M, C) and class fractions (M, K).

    Patches without a valid pixel are left out. Beyond `limit`, each image gives an equal number.
    """
    quota = max(1, limit // max(len(chosen), 1))
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for index in chosen:
        fractions, weights = patch_labels(split.read(index), features.grid, len(split.classes))
        kept = weights.nonzero()[:, 0]
        if len(kept) > quota:
            kept = kept[torch.randperm(len(kept), generator=generator)[:quota].sort().values]
        parts.append((features.patches([index])[0][kept], fractions[kept]))
    tokens, fractions = (torch.cat(part) for part in zip(*parts, strict=True))
    if not len(tokens):
        raise ImageError(f"all pixels of '{split.masks[chosen[0]]}' and the other masks are void.")
    return tokens, fractions


def upsample_scores(scores: Tensor, grid: Grid, size: Size) -> Tensor:
    """Resize scores (N, K) bilinearly to (K, height, width)."""
    table = scores.T.unflatten(1, grid)[None]
    return F.interpolate(table, size, mode="bilinear", align_corners=False)[0]


def choose_highest(scores: Tensor) -> Tensor:
    """Choose the class with the highest score, (K, height, width) -> (height, width)."""
    return scores.argmax(0)


def measure_whole(
    scorers: Sequence[Scorer],
    features: Features,
    split: MaskSplit,
    progress: Progress | None = None,
    *,
    decide: Decide = choose_highest,
) -> list[NDArray[np.float64]]:
    """Score every image in one pass; rows of `segmentation_counts`, (V, 6 K), for each scorer."""

    def scores_of(index: int, size: Size) -> Iterator[Tensor]:
        tokens = features.patches([index])[0]
        return (upsample_scores(scorer(tokens), features.grid, size) for scorer in scorers)

    return _measure(scores_of, split, decide, progress)


def measure_sliding(
    scorers: Sequence[Scorer],
    backbone: Backbone,
    split: MaskSplit,
    sliding: SlidingWindows,
    progress: Progress | None = None,
    *,
    decide: Decide = choose_highest,
) -> list[NDArray[np.float64]]:
    """Score every image by windows at its own aspect ratio; all scorers share the passes."""

    def scores_of(index: int, size: Size) -> Iterator[Tensor]:
        for scores in _slide(scorers, backbone, split, index, sliding):
            yield F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]

    return _measure(scores_of, split, decide, progress)


def _measure(
    scores_of: Callable[[int, Size], Iterator[Tensor]],
    split: MaskSplit,
    decide: Decide,
    progress: Progress | None,
) -> list[NDArray[np.float64]]:
    """Compare the scores of each scorer, (K, height, width), with the masks."""
    rows = []
    for index in range(len(split)):
        mask = split.read(index)
        size = (mask.shape[0], mask.shape[1])
        predicted = (decide(scores).cpu().numpy() for scores in scores_of(index, size))
        rows.append([segmentation_counts(one, mask, len(split.classes)) for one in predicted])
        if progress:
            progress("images", index + 1, len(split))
    return [np.stack(part) for part in zip(*rows, strict=True)]


def _slide(
    scorers: Sequence[Scorer],
    backbone: Backbone,
    split: MaskSplit,
    index: int,
    sliding: SlidingWindows,
) -> Iterator[Tensor]:
    """Run the network on the windows of one image; scores (K, height, width) of each scorer."""
    image = load_image(split.images[index])
    side = min(backbone.fitting_size(sliding.size))
    crop = round_to_patches((sliding.crop or side, sliding.crop or side), backbone.patch)
    stride = sliding.stride or max(1, round(crop[0] * 341 / 518))
    factor = max(side, *crop) / min(image.height, image.width)
    height, width = round(image.height * factor), round(image.width * factor)
    pixels = backbone.preprocessing(image, (height, width)).to(backbone.device, backbone.dtype)
    windows = sliding_windows((height, width), crop, stride)
    maps = []
    with torch.no_grad():
        for start in range(0, len(windows), sliding.batch):
            some = windows[start : start + sliding.batch]
            stacked = torch.stack([pixels[:, t:b, le:r] for t, le, b, r in some])
            with autocast(backbone.device, backbone.bf16):
                tokens = backbone.forward(stacked)
            maps += [(patches.float().cpu(), tokens.grid) for patches in tokens.patches]
    for scorer in scorers:
        parts = (
            (w, upsample_scores(scorer(m), g, crop))
            for w, (m, g) in zip(windows, maps, strict=True)
        )
        yield average_windows(parts, (height, width))
