"""One pass over the images; every statistic of the diagnosis is computed from what it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.neighbors import neighbor_similarity
from clearvit.artifacts.position import PositionStats, PositionSums
from clearvit.backbones.capture import prefix_to_patches
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches
from clearvit.options import Size

FLAT = 0.05  # largest difference within an image of one color, in normalized pixels


@dataclass(frozen=True)
class Observations:
    """What I images on a grid of N patches showed in L blocks."""

    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    grid: tuple[int, int]
    norms: Tensor  # (I, L, N) of the patch tokens, before the final norm
    normed: Tensor  # (I, N) after the final norm: the reading that misses artifacts
    attention: Tensor | None  # (I, L, N) of the class token, mean over heads; None without one
    register_norms: Tensor  # (I, L, R)
    register_attention: Tensor | None  # (I, R, N) in the last block, mean over heads
    similarity: Tensor  # (I, N) mean cosine to the neighbors, after patch embedding
    position_stats: PositionStats  # of the final tokens


def observe(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    *,
    size: Size,
    batch: int = 4,
    advance: Callable[[int], None] | None = None,
) -> Observations:
    """Run every image through the network once.

    Args:
        backbone: The network; its blocks are read before the final norm.
        sources: What to look at; unreadable ones are skipped.
        size: (height, width) in pixels.
        batch: Images per forward pass; results do not depend on it.
        advance: Told how many more images are done.
    """
    sums = PositionSums()
    parts: list[dict[str, Tensor]] = []
    names: list[str] = []
    skipped: list[Skipped] = []
    grid = backbone.grid_of(size)
    with_attention = can_attend(backbone)
    loaded = batches(sources, lambda image: backbone.preprocessing(image, size), size=batch)
    with closing(loaded), torch.no_grad():
        for loaded_batch in loaded:
            names += loaded_batch.names
            skipped += loaded_batch.skipped
            if loaded_batch.items:
                pixels = torch.stack(loaded_batch.items).to(backbone.device, backbone.dtype)
                parts.append(_observe_batch(backbone, pixels, sums, with_attention))
            if advance:
                advance(len(loaded_batch.names) + len(loaded_batch.skipped))
    if not parts:
        raise ImageError(f"none of {len(sources)} images could be read: {skipped[0].reason}.")
    joined: dict[str, Any] = {"attention": None, "register_attention": None}  # where none attends
    joined |= {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if not joined.pop("varied").any():
        raise ImageError(
            "every image is of one color, so nothing can be said about the model. Give photos."
        )
    return Observations(tuple(names), tuple(skipped), grid, **joined, position_stats=sums.result())


def can_attend(backbone: VitBackbone) -> bool:
    """Tell whether there are prefix tokens with plain attention to look at."""
    return bool(backbone.prefix_names) and all(hasattr(b, "attn") for b in backbone.network.blocks)


def _observe_batch(
    backbone: VitBackbone, pixels: Tensor, sums: PositionSums, with_attention: bool
) -> dict[str, Tensor]:
    capture = ("prefix_attention",) if with_attention else ()
    tokens = backbone.forward(pixels, layers=range(backbone.depth), norm=False, capture=capture)
    blocks = [tokens.layers[index] for index in range(backbone.depth)]
    final = backbone.network.norm(tokens.patches)
    sums.add(final.float(), tokens.grid)
    patches = backbone.embed_patches(pixels).permute(0, 3, 1, 2)
    seen = {
        "varied": (pixels.amax((2, 3)) - pixels.amin((2, 3))).amax(1).cpu() > FLAT,
        "norms": torch.stack([block.norms.cpu() for block in blocks], dim=1),
        "normed": _norms(final),
        "register_norms": torch.stack([_norms(block.registers) for block in blocks], dim=1),
        "similarity": neighbor_similarity(patches.float()).flatten(1).cpu(),
    }
    if with_attention:
        seen |= _attention(tokens, backbone.prefix_names)
    return seen


def _attention(tokens: Tokens, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Mean over heads of the attention of prefix tokens to patches."""
    maps = tokens.prefix_attention

    def rows(block: int, kind: str) -> list[Tensor]:
        indices = [i for i, name in enumerate(names) if name == kind]
        return [prefix_to_patches(maps[block], len(names), i).float().cpu() for i in indices]

    seen = {}
    if "class" in names:
        seen["attention"] = torch.stack([rows(block, "class")[0] for block in maps], dim=1)
    if "register" in names:
        seen["register_attention"] = torch.stack(rows(max(maps), "register"), dim=1)
    return seen


def _norms(tokens: Tensor) -> Tensor:
    norms: Tensor = tokens.float().norm(dim=-1).cpu()
    return norms
