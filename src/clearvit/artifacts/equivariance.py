"""Do features move with the image? The premise of denoising by shifted views.

Two crops of a slightly larger image, a few whole patches apart, show the same content at other
positions of the grid; a mirrored crop shows it the other way round. A feature that belongs to the
content is the same in all of them. The measure is the cosine distance between the features of one
piece of content, as a fraction of the distance between different pieces of the same image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.images import ImageSource, batches
from clearvit.options import Size
from clearvit.stats import bootstrap

SHIFT = 0.1  # of the grid, in whole patches
VIEWS = 3  # forward passes per image
NOTICEABLE = 0.10  # fraction of the distance between different contents


def level_of(step: int, cells: int) -> float:
    """Give the ratio beyond which a change with a shift matters.

    Part of any change is right: a shift brings other context into view. A grid of few cells cannot
    be shifted by a tenth of it, and the level grows with what it is shifted by instead. See
    docs/results/verdict.md for models on both sides of it.

    Args:
        step: Length of the shift in patches.
        cells: Patches along the shorter side of the grid.
    """
    return NOTICEABLE * max(1.0, step / cells / SHIFT)


@dataclass(frozen=True)
class Equivariance:
    """Mean cosine distances of final patch tokens, one number per image."""

    shift: tuple[float, ...]  # same content, shifted by whole patches
    flip: tuple[float, ...]  # same content, mirrored; a mirrored patch may rightly differ
    different: tuple[float, ...]  # different contents of the same image
    patches: int  # length of the shift along both axes
    level: float = NOTICEABLE  # ratio beyond which it matters at the size measured

    @property
    def ratios(self) -> tuple[float, ...]:
        """Distance of shifted content as a fraction of the distance of different contents."""
        pairs = zip(self.shift, self.different, strict=True)
        return tuple(shift / max(different, 1e-12) for shift, different in pairs)

    @property
    def ratio(self) -> float:
        """Mean over the images."""
        return sum(self.ratios) / len(self.ratios)

    @property
    def matters(self) -> bool:
        """Whether the whole 95 % interval of the mean lies beyond the level."""
        return bootstrap(self.ratios).low > self.level

    @property
    def confidence(self) -> float:
        """Fraction of the images in which the effect is noticeable, 0..1."""
        return sum(ratio > self.level for ratio in self.ratios) / len(self.ratios)


def measure_equivariance(
    backbone: Backbone,
    sources: Sequence[ImageSource],
    *,
    size: Size,
    batch: int = 4,
    advance: Callable[[int], None] | None = None,
) -> Equivariance | None:
    """Measure on some images; None if none can be read.

    Costs VIEWS forward passes per image at `size`, (height, width) in pixels.
    """
    grid = (size[0] // backbone.patch[0], size[1] // backbone.patch[1])
    step = max(1, round(SHIFT * min(grid)))
    if min(grid) <= step:
        return None
    larger = (size[0] + step * backbone.patch[0], size[1] + step * backbone.patch[1])
    rows: list[Tensor] = []
    loaded = batches(sources, lambda image: backbone.preprocessing(image, larger), size=batch)
    with closing(loaded), torch.no_grad():
        for group in loaded:
            if group.items:
                pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
                rows.append(_distances(backbone, pixels, size, step))
            if advance:
                advance(VIEWS * (len(group.names) + len(group.skipped)))
    if not rows:
        return None
    shift, flip, different = torch.cat(rows).T.tolist()
    return Equivariance(
        tuple(shift), tuple(flip), tuple(different), step, level_of(step, min(grid))
    )


def _distances(backbone: Backbone, pixels: Tensor, size: Size, step: int) -> Tensor:
    """Distances (B, 3): shifted, mirrored and different contents."""
    down, right = step * backbone.patch[0], step * backbone.patch[1]
    first = pixels[:, :, : size[0], : size[1]]
    second = pixels[:, :, down:, right:]
    base = F.normalize(backbone.forward(first).map.float(), dim=1)
    moved = F.normalize(backbone.forward(second).map.float(), dim=1)
    mirrored = F.normalize(backbone.forward(first.flip(3)).map.float(), dim=1).flip(3)
    cells = step * backbone.scale
    shift = 1 - (base[:, :, cells:, cells:] * moved[:, :, :-cells, :-cells]).sum(1).mean((1, 2))
    flip = 1 - (base * mirrored).sum(1).mean((1, 2))
    flat = base.flatten(2)
    count = flat.shape[2]
    # mean cosine over all pairs of different patches, from the length of their sum
    pairs = (flat.sum(2).square().sum(1) - count) / (count * (count - 1))
    return torch.stack([shift, flip, 1 - pairs], dim=1).cpu()
