"""Segmentation from frozen tokens: labelled patches, and the measuring of any scorer.

As in the linear-probing protocol of DINOv2 (arXiv 2304.07193), scores of patches are upsampled
bilinearly; `sgd` trains its head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size, fitting
from clearvit.dense.features import Features
from clearvit.dense.metrics import segmentation_row
from clearvit.dense.patches import patch_labels
from clearvit.dense.splits import MaskSplit, read_photo
from clearvit.dense.windows import Sliding, averaged, windows
from clearvit.errors import ImageError
from clearvit.progress import Progress

Scorer = Callable[[Tensor], Tensor]
"""Maps patch tokens (N, C) to scores of the classes (N, K)."""
Decide = Callable[[Tensor], Tensor]
"""Maps scores (K, height, width) at the size of the mask to classes (height, width)."""
Grid = tuple[int, int]


def labelled_patches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, most: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Collect patches of some images: tokens (M, C) and shares of the classes (M, K).

    Patches without a valid pixel are left out. Beyond `most`, each image gives an equal number.
    """
    quota = max(1, most // max(len(chosen), 1))
    chance = torch.Generator().manual_seed(seed)
    parts = []
    for index in chosen:
        shares, weights = patch_labels(split.read(index), features.grid, len(split.classes))
        kept = weights.nonzero()[:, 0]
        if len(kept) > quota:
            kept = kept[torch.randperm(len(kept), generator=chance)[:quota].sort().values]
        parts.append((features.patches([index])[0][kept], shares[kept]))
    tokens, shares = (torch.cat(part) for part in zip(*parts, strict=True))
    if not len(tokens):
        raise ImageError(f"all pixels of '{split.masks[chosen[0]]}' and the other masks are void.")
    return tokens, shares


def upsampled(scores: Tensor, grid: Grid, size: Size) -> Tensor:
    """Resize scores (N, K) bilinearly to (K, height, width)."""
    table = scores.T.unflatten(1, grid)[None]
    return F.interpolate(table, size, mode="bilinear", align_corners=False)[0]


def highest(scores: Tensor) -> Tensor:
    """Choose the class with the highest score, (K, height, width) -> (height, width)."""
    return scores.argmax(0)


def measure_whole(
    scorers: Sequence[Scorer],
    features: Features,
    split: MaskSplit,
    progress: Progress | None = None,
    *,
    decide: Decide = highest,
) -> list[NDArray[np.float64]]:
    """Score every image in one piece; rows of `segmentation_row`, (V, 3 K), for each scorer."""

    def answers(index: int, size: Size) -> Iterator[Tensor]:
        tokens = features.patches([index])[0]
        return (upsampled(scorer(tokens), features.grid, size) for scorer in scorers)

    return _measured(answers, split, decide, progress)


def measure_sliding(
    scorers: Sequence[Scorer],
    backbone: Backbone,
    split: MaskSplit,
    sliding: Sliding,
    progress: Progress | None = None,
    *,
    decide: Decide = highest,
) -> list[NDArray[np.float64]]:
    """Score every image by windows at its own aspect ratio; all scorers share the passes."""

    def answers(index: int, size: Size) -> Iterator[Tensor]:
        for scores in _slide(scorers, backbone, split, index, sliding):
            yield F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]

    return _measured(answers, split, decide, progress)


def _measured(
    answers: Callable[[int, Size], Iterator[Tensor]],
    split: MaskSplit,
    decide: Decide,
    progress: Progress | None,
) -> list[NDArray[np.float64]]:
    """Compare what each scorer answers, (K, height, width) at the size of the mask."""
    rows = []
    for index in range(len(split)):
        mask = split.read(index)
        size = (mask.shape[0], mask.shape[1])
        classes = (decide(scores).cpu().numpy() for scores in answers(index, size))
        rows.append([segmentation_row(found, mask, len(split.classes)) for found in classes])
        if progress:
            progress(index + 1, len(split))
    return [np.stack(mine) for mine in zip(*rows, strict=True)]


def _slide(
    scorers: Sequence[Scorer],
    backbone: Backbone,
    split: MaskSplit,
    index: int,
    sliding: Sliding,
) -> Iterator[Tensor]:
    """Run the windows of one image; averaged scores (K, height, width) of each scorer."""
    image = read_photo(split.images[index])
    side = min(backbone.fitting_size(sliding.size))
    crop = fitting((sliding.crop or side, sliding.crop or side), backbone.patch)
    stride = sliding.stride or max(1, round(crop[0] * 341 / 518))
    factor = max(side, *crop) / min(image.height, image.width)
    height, width = round(image.height * factor), round(image.width * factor)
    pixels = backbone.preprocessing(image, (height, width)).to(backbone.device, backbone.dtype)
    places = windows((height, width), crop, stride)
    maps = []
    with torch.no_grad():
        for start in range(0, len(places), sliding.batch):
            some = places[start : start + sliding.batch]
            stacked = torch.stack([pixels[:, t:b, le:r] for t, le, b, r in some])
            tokens = backbone.forward(stacked)
            maps += [(patches.float().cpu(), tokens.grid) for patches in tokens.patches]
    for scorer in scorers:
        parts = ((p, upsampled(scorer(m), g, crop)) for p, (m, g) in zip(places, maps, strict=True))
        yield averaged(parts, (height, width))
