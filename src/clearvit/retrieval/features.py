"""Descriptors and patches of a fixed list of images, under several marginals, computed once.

An index serves searches; this serves measurements, which compare marginals on the same images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.files import written_whole
from clearvit.images import Picture, batches
from clearvit.progress import Progress
from clearvit.retrieval.describe import Recipe, Settled, check_finite, describe_each
from clearvit.retrieval.matching import Locals

PIECE = 512  # images per file of a cache; what a killed run loses at most


@dataclass(frozen=True)
class Features:
    """N images as they are searched; patches are kept in half precision, as in an index."""

    recipe: Recipe
    descriptors: Tensor  # (N, D), unit length
    patches: dict[Settled, Tensor]  # by marginal, (N, R, C) float16, unit length
    weights: dict[Settled, Tensor]  # by marginal, (N, R), sum 1

    def __len__(self) -> int:
        return len(self.descriptors)

    def locals(self, marginal: Settled, chosen: Tensor | slice = slice(None)) -> Locals:
        """Give the patches of some images as matching takes them."""
        descriptors = None if self.recipe.descriptor == "joint" else self.descriptors[chosen]
        patches = self.patches[marginal][chosen].float()
        return Locals(patches, self.weights[marginal][chosen], descriptors)


def collect_features(
    backbone: Backbone,
    pictures: Sequence[Picture],
    recipe: Recipe,
    marginals: Sequence[Settled],
    *,
    batch: int = 8,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Features:
    """Describe images, or find them in a cache; an image that cannot be read is an error.

    Args:
        backbone: Makes the tokens.
        pictures: What to read.
        recipe: Size, grid and descriptor; its marginal is not used.
        marginals: Which weights to compute.
        batch: Images per forward pass.
        cache: Folder that keeps the numbers for the next run, which also finishes a killed one.
        progress: Told how many images are done, of how many.
    """
    names = tuple(dict.fromkeys(marginals))
    folder = None if cache is None else Path(cache) / _key(pictures, recipe, names)
    parts: list[dict[str, Tensor]] = []
    for start in range(0, len(pictures), PIECE):
        file = None if folder is None else folder / f"{start:08d}.safetensors"
        if file is not None and file.exists():
            parts.append(load_file(file))
            continue
        done: list[dict[str, Tensor]] = []
        for one in _described(backbone, pictures[start : start + PIECE], recipe, names, batch):
            done.append(one)
            if progress:
                progress(start + sum(len(d["descriptors"]) for d in done), len(pictures))
        parts.append(_joined(done))
        if file is not None:
            with written_whole(file) as temporary:
                save_file(parts[-1], temporary)
    whole = _joined(parts)
    # Only weights that keep artifacts out pool other patches.
    patches = {name: whole[f"patches.{_patches_of(name)}"] for name in names}
    weights = {name: whole[f"weights.{name}"] for name in names}
    return Features(recipe, whole["descriptors"], patches, weights)


def _described(
    backbone: Backbone,
    pictures: Sequence[Picture],
    recipe: Recipe,
    marginals: Sequence[Settled],
    batch: int,
) -> Iterator[dict[str, Tensor]]:
    source = batches(
        pictures,
        lambda image: backbone.preprocessing(image, recipe.size),
        size=batch,
        threads=1 if backbone.device.type == "cpu" else 4,
        strict=True,
    )
    with closing(source):
        for read in source:
            pixels = torch.stack(list(read.items)).to(backbone.device, backbone.dtype)
            tensors: dict[str, Tensor] = {}
            found = describe_each(backbone, pixels, recipe, marginals)
            for name, one in zip(marginals, found, strict=True):
                check_finite(one, read.names)
                tensors["descriptors"] = one.descriptors
                tensors[f"patches.{_patches_of(name)}"] = one.patches.half()
                tensors[f"weights.{name}"] = one.weights
            yield tensors


def _patches_of(marginal: Settled) -> str:
    return "clean" if marginal == "without_artifacts" else "all"


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([part[key] for part in parts]).contiguous() for key in parts[0]}


def _key(pictures: Sequence[Picture], recipe: Recipe, marginals: Sequence[Settled]) -> str:
    """Name a folder after all that decides the numbers."""
    listed = [(picture.name, str(picture.source)) for picture in pictures]
    settings = (recipe.fingerprint, recipe.size, recipe.grid, recipe.descriptor, marginals, listed)
    return f"retrieval-{hashlib.sha256(repr(settings).encode()).hexdigest()[:16]}"
