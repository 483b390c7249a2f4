"""Final tokens of some pictures, kept as small as the table needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.tokens import Tokens
from clearvit.images import Picture, Skipped, batches


@dataclass(frozen=True)
class Finals:
    """One forward pass of each picture, on the CPU."""

    summaries: Tensor  # (I, C): class tokens, else the means of the patches
    patches: dict[str, Tensor]  # (N, C) by name, of the pictures that were to be kept
    grid: tuple[int, int]


def finals(
    backbone: Backbone,
    pictures: Sequence[Picture],
    *,
    size: Size,
    keep: Collection[str] = (),
    batch: int = 4,
    advance: Callable[[int], None] | None = None,
) -> Finals:
    """Run readable pictures through a backbone.

    Args:
        backbone: Any.
        pictures: All of them readable.
        size: (height, width) in pixels.
        keep: Names of the pictures whose patches to keep.
        batch: Images per forward pass.
        advance: Told how many more images are done.
    """
    summaries: list[Tensor] = []
    patches: dict[str, Tensor] = {}
    grid = (0, 0)
    loaded = batches(
        pictures, lambda image: backbone.preprocessing(image, size), size=batch, strict=True
    )
    with closing(loaded), torch.no_grad():
        for group in loaded:
            pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
            tokens = backbone.forward(pixels)
            grid = tokens.grid
            summaries.append(summary(tokens).float().cpu())
            for name, tokens_of_one in zip(group.names, tokens.patches, strict=True):
                if name in keep:
                    patches[name] = tokens_of_one.float().cpu()
            if advance:
                advance(len(group.items))
    return Finals(torch.cat(summaries), patches, grid)


def summary(tokens: Tokens) -> Tensor:
    """Describe each image by its class token, or by the mean of its patches, (B, C)."""
    return tokens.patches.mean(dim=1) if tokens.cls is None else tokens.cls


def readable(
    pictures: Sequence[Picture], batch: int = 4
) -> tuple[list[Picture], tuple[Skipped, ...]]:
    """Part pictures into those that can be read and those that cannot; decodes them all."""
    good: set[str] = set()
    skipped: list[Skipped] = []
    with closing(batches(pictures, lambda image: image.size, size=batch)) as loaded:
        for group in loaded:
            good.update(group.names)
            skipped += group.skipped
    return [picture for picture in pictures if picture.name in good], tuple(skipped)
