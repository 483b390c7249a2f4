"""What one model shows of one image: tokens, keys, norms and attention, before any coding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.capture import KINDS, Kind, capturing, per_block
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.images import ImageSource, batches
from clearvit.microscopy.page_plan import ModelPlan, Part, base_grid, can_capture, coarse_grid
from clearvit.microscopy.turns import Turn, at_once
from clearvit.options import Size

BATCH = 2  # images per forward pass; attention of all patches of a block is held for each
FEW_CELLS = 1600  # patches of an image, beyond which it goes alone


@dataclass(frozen=True)
class Sight:
    """One image through one model; everything on the CPU.

    Attributes:
        name: Name of the image.
        features: Tokens, keys, queries and values of patches, (N, C), by block and part; those of
            the output are under the last block (under -1 for a model without blocks).
        grids: The grid (H, W) of each of them.
        norms: Norms of the patch tokens of all blocks before the final norm, (L, N); or None.
        prefix_attention: By block, attention of each prefix token to patches, (P, N), in multiples
            of an even share.
        on_prefix: By block, the fraction of it that goes to the prefix tokens themselves, (P,).
        patch_attention: By block, the same between cells of a coarser grid, (n, n).
        kept: Patches that a pruned model kept to the end, (N,) bool; or None.
    """

    name: str
    features: dict[tuple[int, Part], Tensor]
    grids: dict[tuple[int, Part], tuple[int, int]]
    norms: Tensor | None
    prefix_attention: dict[int, Tensor]
    on_prefix: dict[int, Tensor]
    patch_attention: dict[int, Tensor]
    kept: Tensor | None


def collect_sights(
    backbone: Backbone, sources: Sequence[ImageSource], plan: ModelPlan, turn: Turn = at_once
) -> Iterator[Sight]:
    """Run readable images through a model, one sight for each, in order."""
    height, width = base_grid(backbone, plan.size)
    loaded = batches(
        sources,
        lambda image: backbone.preprocessing(image, plan.size),
        size=BATCH if height * width <= FEW_CELLS else 1,
        strict=True,
    )
    with closing(loaded):
        for group in loaded:
            pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
            seen = turn(backbone, partial(_run, backbone, pixels, plan))
            for i, name in enumerate(group.names):
                yield seen.sight(i, name)


def block_norms(
    backbone: VitBackbone, sources: Sequence[ImageSource], size: Size, turn: Turn = at_once
) -> Tensor:
    """Give the norms of the patch tokens of all blocks before the final norm, (I, L, N)."""
    parts = []
    loaded = batches(
        sources, lambda image: backbone.preprocessing(image, size), size=BATCH, strict=True
    )
    with closing(loaded):
        for group in loaded:
            pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
            parts.append(turn(backbone, partial(_all_norms, backbone, pixels)))
    return torch.cat(parts)


@torch.no_grad()
def _all_norms(backbone: VitBackbone, pixels: Tensor) -> Tensor:
    return _norms(backbone.forward(pixels, layers=range(backbone.depth), norm=False))


@dataclass(frozen=True)
class _Run:
    """A batch through one model."""

    last: int
    final: Tokens
    inner: Tokens | None  # with all blocks before the final norm; None for a model without blocks
    normed: dict[int, Tensor]  # by block, after the final norm, (B, N, C)
    plan: ModelPlan

    def sight(self, i: int, name: str) -> Sight:
        output: tuple[int, Part] = (self.last, "token")
        features = {output: self.final.patches[i].float().cpu()}
        grids = {output: self.final.grid}
        kept = None if self.final.kept is None else self.final.kept[i].cpu()
        if self.inner is None:
            return Sight(name, features, grids, None, {}, {}, {}, kept)
        tokens, prefix = self.inner, len(self.inner.prefix_names)
        for block in self.plan.blocks:
            features[block, "token"] = self.normed[block][i].float().cpu()
        patch_attention: dict[int, Tensor] = {}
        for block, parts in self.plan.parts.items():
            for part in parts:
                if part == "attention":
                    own = tokens.attention[block][i].float().mean(0)[prefix:, prefix:]
                    patch_attention[block] = pool_attention(own * (len(own) + prefix), tokens.grid)
                else:
                    heads: Tensor = getattr(tokens, part)[block][i]  # (heads, P + N, C / heads)
                    flat = heads.transpose(0, 1).flatten(1)[prefix:]
                    features[block, part] = flat.float().cpu()
        for key in features:
            grids.setdefault(key, tokens.grid)
        rows = {b: a[i].float().mean(0).cpu() for b, a in tokens.prefix_attention.items()}
        return Sight(
            name=name,
            features=features,
            grids=grids,
            norms=_norms(tokens)[i],
            prefix_attention={b: r[:, prefix:] * r.shape[1] for b, r in rows.items()},
            on_prefix={b: r[:, :prefix].sum(1) for b, r in rows.items()},
            patch_attention=patch_attention,
            kept=kept,
        )


@torch.no_grad()
def _run(backbone: Backbone, pixels: Tensor, plan: ModelPlan) -> _Run:
    if not isinstance(backbone, VitBackbone):
        return _Run(-1, backbone.forward(pixels), None, {}, plan)
    last, every = backbone.depth - 1, range(backbone.depth)
    asked = {part for parts in plan.parts.values() for part in parts}
    kinds: list[Kind] = [kind for kind in KINDS if kind in asked]
    if backbone.prefix_names and can_capture(backbone):
        kinds.append("prefix_attention")
    shown = sorted({*plan.blocks, last})
    if type(backbone).forward is VitBackbone.forward:  # one pass; what is captured is of `shown`
        prefix = len(backbone.prefix_names)
        with capturing(backbone.network.blocks, shown, kinds, prefix) as seen:
            tokens = backbone.forward(pixels, layers=every, norm=False)
        tokens = replace(tokens, **per_block(seen, backbone.depth))
        normed = backbone.network.norm(tokens.patches)
        final = backbone.finish(replace(tokens, patches=normed, normed=True))
    else:  # a subclass has steps of its own
        final = backbone.forward(pixels)
        layers = backbone.forward(pixels, layers=every, norm=False).layers
        captured = backbone.forward(pixels, layers=shown, norm=False, capture=kinds)
        tokens = replace(captured, layers=layers)
    inner = {b: backbone.network.norm(tokens.layers[b].patches) for b in plan.blocks}
    return _Run(last, final, tokens, inner, plan)


def _norms(tokens: Tokens) -> Tensor:
    """Norms of all blocks, (B, L, N)."""
    every = [tokens.layers[block].patches.float().norm(dim=-1) for block in tokens.layers]
    return torch.stack(every, dim=1).cpu()


def pool_attention(attention: Tensor, grid: tuple[int, int]) -> Tensor:
    """Average attention between patches, (N, N), over cells of the coarse grid, (n, n)."""
    factor, (height, width) = coarse_grid(grid)
    if factor == 1:
        return attention.cpu()
    own = attention.view(-1, 1, *grid)
    pooled = F.avg_pool2d(own, factor, ceil_mode=True, count_include_pad=False).flatten(1)
    rows = pooled.T.reshape(-1, 1, *grid)
    both = F.avg_pool2d(rows, factor, ceil_mode=True, count_include_pad=False).flatten(1)
    return both.T.reshape(height * width, height * width).cpu()
