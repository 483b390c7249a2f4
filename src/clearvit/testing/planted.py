"""Artifacts of a known kind at known positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone, Images
from clearvit.backbones.vit import Embedded, VitBackbone
from clearvit.errors import ModelError, closest
from clearvit.options import Size

Kind = Literal["high-norm", "low-norm", "positional"]
KINDS: tuple[Kind, ...] = get_args(Kind)

RELATIVE_NORM = {"high-norm": 8.0, "low-norm": 0.1}  # times the median norm of the image
REDUNDANT = 0.5  # artifacts sit among this fraction of patches, those most like their neighbors


class Planted(NamedTuple):
    """A backbone with artifacts, and where they are."""

    backbone: VitBackbone
    mask: Callable[..., Tensor]  # mask(images, size=...) -> (B, N) bool


def planted(
    backbone: Backbone,
    kind: Kind,
    fraction: float = 0.02,
    seed: int = 0,
    *,
    block: int | None = None,
    until: int | None = None,
    lossy: bool = True,
) -> Planted:
    """Plant artifacts into a backbone; the original is left as it was.

    High- and low-norm artifacts sit, as Darcet et al. found them, at patches that are similar to
    their neighbors, sampled anew for every image, and hold the mean of the image instead of the
    patch. Positional ones sit at the same grid positions in every image, where the token turns
    towards a fixed direction and has the median norm.

    Args:
        backbone: A ViT.
        kind: "high-norm" (8 x the median norm of the image), "low-norm" (0.1 x) or "positional".
        fraction: Fraction of the patches, in (0, 0.5]; at least one patch per image.
        seed: Seed of positions and directions.
        block: First block whose output has them, from 0; the middle one by default.
        until: Last such block; the last of the network by default. Later blocks may
            repair what they get.
        lossy: High- and low-norm artifacts replace the patch. Otherwise a high-norm one is added to
            it and a low-norm one is the patch scaled down: its content is still there. Positional
            ones always keep it.

    Returns:
        The backbone and `mask(images, size=None)`, which marks the artifacts as (B, N) bool for
        whatever `backbone.tokens` accepts.
    """
    if not isinstance(backbone, VitBackbone):
        raise ModelError(f"'{backbone.name}' is a grid-only backbone; artifacts need a ViT.")
    if kind not in KINDS:
        raise ModelError(f"kind is '{kind}'; use {', '.join(KINDS)}.{closest(kind, KINDS)}")
    if not 0 < fraction <= 0.5:
        raise ModelError(f"fraction is {fraction}; use a fraction in (0, 0.5].")
    first = backbone.depth // 2 if block is None else backbone.block_indices([block])[0]
    last = backbone.block_indices([-1 if until is None else until])[0]
    changed = PlantedBackbone(backbone, kind, fraction, seed, range(first, last + 1), lossy)
    return Planted(changed, changed.mask)


class PlantedBackbone(VitBackbone):
    """A ViT whose tokens are overwritten at some positions, in some blocks."""

    def __init__(
        self,
        backbone: VitBackbone,
        kind: Kind,
        fraction: float,
        seed: int,
        blocks: range,
        lossy: bool,
    ) -> None:
        self.__dict__.update(copy.copy(backbone).__dict__)
        self.name = f"{backbone.name} + {kind}"
        self.kind, self.fraction, self.seed = kind, fraction, seed
        self.blocks, self.lossy = blocks, lossy
        self._positions = torch.empty(0)

    def mask(self, images: Images, *, size: int | Size | None = None) -> Tensor:
        """Where the artifacts of these images are, (B, N) bool."""
        with torch.no_grad():
            parts = [self._sample_positions(pixels) for pixels in self.pixels(images, size=size)]
        return torch.cat(parts)

    def embed_pixels(self, pixels: Tensor) -> Embedded:
        """Sample the positions, then embed as usual."""
        self._positions = self._sample_positions(pixels)
        return super().embed_pixels(pixels)

    def after_block(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Overwrite the tokens at the sampled positions."""
        if index not in self.blocks:
            return x
        prefix = len(self.prefix_names)
        patches = x[:, prefix:]
        changed = torch.where(self._positions[..., None], self._artifact(patches), patches)
        return torch.cat([x[:, :prefix], changed], dim=1)

    def _artifact(self, patches: Tensor) -> Tensor:
        """Values of the artifacts, (B, N, C) or (B, 1, C)."""
        typical: Tensor = patches.norm(dim=-1, keepdim=True).median(dim=1, keepdim=True).values
        if self.kind == "positional":
            direction = torch.randn(self.width, generator=self._generator()).to(patches)
            turned = F.normalize(patches, dim=-1) + 3 * F.normalize(direction, dim=0)
            return F.normalize(turned, dim=-1) * typical
        if self.kind == "low-norm" and not self.lossy:
            return F.normalize(patches, dim=-1) * RELATIVE_NORM[self.kind] * typical
        healthy = (~self._positions)[..., None]
        mean = (patches * healthy).sum(1, keepdim=True) / healthy.sum(1, keepdim=True)
        alone = F.normalize(mean, dim=-1) * RELATIVE_NORM[self.kind] * typical
        return alone if self.lossy else patches + alone

    def _sample_positions(self, pixels: Tensor) -> Tensor:
        """Choose the positions, (B, 3, height, width) -> (B, N) bool, from each image alone."""
        with torch.no_grad():  # one by one: the last bits of a batch depend on its size
            scores = torch.stack([self._scores(image[None]) for image in pixels])
        count = max(1, round(self.fraction * scores.shape[1]))
        mask = torch.zeros_like(scores, dtype=torch.bool)
        return mask.scatter(1, scores.topk(count, dim=1).indices, True).to(pixels.device)

    def _scores(self, image: Tensor) -> Tensor:
        """Random numbers for the positions that may be chosen, -1 for the others, (N,)."""
        if self.kind == "positional":
            cells = image.shape[2] // self.patch[0] * (image.shape[3] // self.patch[1])
            return torch.rand(cells, generator=self._generator())
        similarity = _neighbor_similarity(self.embed_patches(image)[0]).cpu()
        content = (image.double() * 1e4).round().long().sum().item()
        random = torch.rand(len(similarity), generator=self._generator(int(content) % 2**31))
        most = max(1, round(REDUNDANT * len(similarity)))
        redundant = similarity >= similarity.topk(most).values[-1]
        return torch.where(redundant, random, torch.tensor(-1.0))

    def _generator(self, extra: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + extra)

    def _settings(self) -> tuple[object, ...]:
        return (*super()._settings(), self.kind, self.fraction, self.seed, self.blocks, self.lossy)


def _neighbor_similarity(image: Tensor) -> Tensor:
    """Mean cosine to the four neighbors on a torus, (H, W, C) -> (N,)."""
    unit = F.normalize(image.float(), dim=-1)
    down = (unit * unit.roll(-1, 0)).sum(-1)
    right = (unit * unit.roll(-1, 1)).sum(-1)
    similarity: Tensor = (down + down.roll(1, 0) + right + right.roll(1, 1)).flatten() / 4
    return similarity
