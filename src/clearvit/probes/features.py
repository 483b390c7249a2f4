"""The tokens of a split, computed once and read back as often as needed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.datasets.splits import Split
from clearvit.images import listing_of
from clearvit.options import Size
from clearvit.progress import Progress
from clearvit.shards.config import TokenConfig
from clearvit.shards.extract import save_tokens
from clearvit.shards.read import TokenStore


def use_whole_image(backbone: Backbone) -> Backbone:
    """Return the backbone with a preprocessing that squashes images instead of cropping them."""
    if backbone.preprocessing.fit == "squash":
        return backbone
    other = copy.copy(backbone)
    other.preprocessing = dataclasses.replace(backbone.preprocessing, fit="squash")
    return other


class Features:
    """Final tokens of the images of a split, by their index in it."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self.grid = store.grid
        self.size: Size = store.size

    def __len__(self) -> int:
        return len(self._store)

    def tokens(self, indices: Sequence[int]) -> Tokens:
        """Read the tokens of some images, in the precision of the disk."""
        return self._store.read(indices)

    def patches(self, indices: Sequence[int]) -> Tensor:
        """Read the patch tokens of some images, (B, N, C) float32."""
        return self._store.read(indices).patches.float()

    def map(self, indices: Sequence[int], *, cls: bool = False) -> Tensor:
        """Read patch tokens as maps, (B, C, H, W), or (B, 2 C, H, W) with the class token."""
        return to_map(self._store.read(indices), cls=cls)


def to_map(tokens: Tokens, *, cls: bool = False) -> Tensor:
    """Give patch tokens as feature maps; `cls` concatenates the class token to each patch."""
    patches = tokens.map.float()
    if not cls or tokens.cls is None:
        return patches
    repeated = tokens.cls.float()[:, :, None, None].expand_as(patches)
    return torch.cat([patches, repeated], dim=1)


@contextmanager
def extract_features(
    backbone: Backbone,
    split: Split,
    *,
    size: int | Size | None = None,
    batch: int = 8,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Iterator[Features]:
    """Compute the tokens of a split, or find them in the cache.

    They are stored as the shards of `clearvit tokens`, in half precision; without a cache, in a
    temporary folder that is removed afterwards. An image that cannot be read is an error.
    """
    config = TokenConfig(size=size, batch=batch, strict=True)
    with TemporaryDirectory(prefix="clearvit-") as temporary:
        out = Path(temporary) / "tokens"
        if cache is not None:
            out = Path(cache) / _folder(backbone, split, size, batch)
        store = save_tokens(backbone, split.sources, out=out, config=config, progress=progress)
        yield Features(store)


def _folder(backbone: Backbone, split: Split, size: int | Size | None, batch: int) -> str:
    """Name a folder after all that decides the tokens."""
    height, width = backbone.fitting_size(size)
    model = re.sub(r"[^\w.-]+", "-", backbone.name).strip("-.")[-40:] or "model"
    images = hashlib.sha256(f"{listing_of(split.sources)}{batch}".encode()).hexdigest()[:8]
    return f"{model}-{backbone.fingerprint()[:8]}-{height}x{width}-{split.name}-{images}"


def sample_images(total: int, count: int | None, seed: int) -> list[int]:
    """Sample images, indices ascending; with one seed, smaller samples are part of larger ones."""
    if count is None or count >= total:
        return list(range(total))
    order = np.random.default_rng(seed).permutation(total)
    return sorted(int(i) for i in order[:count])


def select_evenly(total: int, limit: int | None) -> list[int]:
    """Select at most `limit` indices evenly; the first and the last image are always among them."""
    if limit is None or limit >= total:
        return list(range(total))
    return [int(i) for i in np.linspace(0, total - 1, limit).round()]
