"""The many-view average of the first model: what its patches would be without artifacts.

It costs hundreds of forward passes per image and depends on the first model only, so it can be kept
on disk: a killed run resumes, and another cured model costs only its own passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.comparison.config import CompareConfig
from clearvit.files import written_whole
from clearvit.images import ImageSource, read_image
from clearvit.options import Size
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoise import denoise_pixels, views_for
from clearvit.views.sampling import all_views, phases_for

FEW = 10  # views of the target: what denoising costs when it is used


@dataclass(frozen=True)
class Reference:
    """Averages over the views of I images on a grid of N patches."""

    views: int  # how many were averaged
    many: Tensor  # (I, N, C)
    few: Tensor  # (I, N, C), of FEW views


def view_count(grid: tuple[int, int], patch: Size, config: CompareConfig) -> int:
    """How many views there will be: what is wanted, at most all distinct ones."""
    phases = 1 if config.sampler == "whole" else phases_for(config.views, patch, scale=1)
    return min(config.views, len(all_views(grid, patch=patch, phases=phases)))


def average_views(
    backbone: Backbone,
    images: Sequence[ImageSource],
    size: Size,
    config: CompareConfig,
    advance: Callable[[int], None] | None = None,
) -> Reference:
    """Average the views of every image.

    Args:
        backbone: The first model.
        images: All of them readable.
        size: (height, width) in pixels.
        config: Number of views, seed, batch and the folder that keeps averages.
        advance: Called with the number of forward passes just done.
    """
    grid = (size[0] // backbone.patch[0], size[1] // backbone.patch[1])
    count = view_count(grid, backbone.patch, config)
    cache = None if config.cache is None else Path(config.cache)
    model = "" if cache is None else backbone.fingerprint()
    parts = []
    for image in images:
        pixels = backbone.preprocessing(read_image(image.source), size)[None]
        path = None if cache is None else cache / _file_name(model, pixels, count, config)
        parts.append(_averages(backbone, pixels, (count, FEW), config, path))
        if advance:
            advance(count + FEW)
    many, few = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return Reference(count, many, few)


def _averages(
    backbone: Backbone,
    pixels: Tensor,
    counts: tuple[int, int],
    config: CompareConfig,
    path: Path | None,
) -> tuple[Tensor, Tensor]:
    """Patches (N, C) of one image averaged over many views and over few."""
    if path is not None and path.exists():
        kept = load_file(path)
        return kept["many"], kept["few"]
    pixels = pixels.to(backbone.device, backbone.dtype)
    parts = []
    for count in counts:
        how = DenoiseConfig(
            views=count, sampler=config.sampler, seed=config.seed, batch=config.batch
        )
        with torch.no_grad():
            clean = denoise_pixels(backbone, pixels, views_for(backbone, pixels, how), how)
        parts.append(clean.patches[0].float().cpu())
    many, few = parts
    if path is not None:
        with written_whole(path) as temporary:
            save_file({"many": many.contiguous(), "few": few.contiguous()}, temporary)
    return many, few


def _file_name(model: str, pixels: Tensor, count: int, config: CompareConfig) -> str:
    """Hash everything that decides the averages."""
    decides = (model, tuple(pixels.shape), count, FEW, config.seed, config.sampler)
    digest = hashlib.sha256(repr(decides).encode())
    digest.update(pixels.contiguous().view(torch.uint8).numpy().data)
    return f"{digest.hexdigest()[:32]}.safetensors"
