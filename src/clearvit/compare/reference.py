"""The many-view average of the first model: what its patches would be without position artifacts.

It costs hundreds of forward passes per image and depends on nothing but the first model, so it can
be kept on disk: a run that was killed goes on, and another cured model costs only its own passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.cure.denoise import denoise
from clearvit.cure.views import all_views
from clearvit.errors import StoreError
from clearvit.files import why_not_written, written_whole
from clearvit.images import Picture, read_image

FEW = 10  # views of the target: what denoising costs when it is used


@dataclass(frozen=True)
class Reference:
    """Averages over the views of I images on a grid of N patches."""

    views: int  # how many were averaged
    many: Tensor  # (I, N, C)
    few: Tensor  # (I, N, C), of FEW views


def view_count(grid: tuple[int, int], wanted: int) -> int:
    """How many views there will be: what is wanted, at most all distinct ones."""
    return min(wanted, len(all_views(grid)))


def reference(
    backbone: Backbone,
    pictures: Sequence[Picture],
    *,
    size: Size,
    views: int,
    seed: int = 0,
    batch: int = 4,
    cache: Path | None = None,
    advance: Callable[[int], None] | None = None,
) -> Reference:
    """Average the views of every picture.

    Args:
        backbone: The first model.
        pictures: All of them readable.
        size: (height, width) in pixels.
        views: How many; from the number of distinct views on, all of them.
        seed: Of the views.
        batch: Views per forward pass.
        cache: Folder to keep the averages in; the same question is answered from there.
        advance: Told how many more forward passes are done.
    """
    grid = (size[0] // backbone.patch[0], size[1] // backbone.patch[1])
    count = view_count(grid, views)
    model = backbone.fingerprint() if cache is not None else ""
    parts = []
    for picture in pictures:
        pixels = backbone.preprocessing(read_image(picture.source), size)[None]
        path = None if cache is None else cache / _file_name(model, pixels, count, seed)
        parts.append(_averages(backbone, pixels, (count, FEW), seed, batch, path))
        if advance:
            advance(count + FEW)
    many, few = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return Reference(count, many, few)


def _averages(
    backbone: Backbone,
    pixels: Tensor,
    counts: tuple[int, int],
    seed: int,
    batch: int,
    path: Path | None,
) -> tuple[Tensor, Tensor]:
    """Patches (N, C) of one picture averaged over many views and over few."""
    if path is not None and path.exists():
        kept = load_file(path)
        return kept["many"], kept["few"]
    many, few = (
        denoise(backbone, pixels, views=count, seed=seed, batch=batch).patches[0].float().cpu()
        for count in counts
    )
    if path is not None:
        try:
            with written_whole(path) as temporary:
                save_file({"many": many.contiguous(), "few": few.contiguous()}, temporary)
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"'{path}' cannot be written: {why_not_written(error)}. Choose another --out."
            ) from error
    return many, few


def _file_name(model: str, pixels: Tensor, count: int, seed: int) -> str:
    """Hash everything that decides the averages."""
    digest = hashlib.sha256(repr((model, tuple(pixels.shape), count, FEW, seed)).encode())
    digest.update(pixels.contiguous().view(torch.uint8).numpy().data)
    return f"{digest.hexdigest()[:32]}.safetensors"
