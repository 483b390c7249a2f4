"""Patch weights of backbones in stages: CvT and Swin-T, as "Beyond the CLS Token" uses them.

CvT attends from many queries to fewer keys, on grids that shrink from stage to stage. As in the
published code, every map is averaged to the coarsest grid, first over the keys, then over the
queries, and all blocks are multiplied there. Swin attends inside windows; in its last stage at 224
px one window covers the grid, and rollout runs over the blocks of that stage. With more windows
only the attention that a patch draws inside its own window is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearvit.backbones.sources.staged_attention import BlockAttention
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.retrieval.matching.pooling import pool_patches, pool_weights
from clearvit.retrieval.patch_weights import discard_smallest, multiply_blocks, normalize_weights


def staged_weights(blocks: Sequence[BlockAttention], kind: str, grid: Size) -> Tensor:
    """Weigh the patches of a grid (H, W) by attention, (B, H*W), sum 1.

    Args:
        blocks: Attention of all blocks that were read, in order.
        kind: "attention" (of the class token in the last block, or what a patch draws there where
            there is none), "rollout" (Eq. 7) or "rollout-min" (the published code).
        grid: Of the final patches.
    """
    if kind == "attention":
        found, coarse = drawn_attention(blocks[-1]), blocks[-1].keys
    else:
        found, coarse = staged_rollout(blocks, official=kind == "rollout-min")
    return pool_weights(found.float(), coarse, grid)


def drawn_attention(block: BlockAttention) -> Tensor:
    """Weigh keys by the attention they draw in one block, mean over heads, (B, K), sum 1.

    That of the class token where there is one, else the mean over all queries of their window.
    """
    if block.prefix:
        row = block.weights[:, :, 0, block.prefix :].mean(1)
        return normalize_weights(row)
    if block.window is None:
        return normalize_weights(block.weights.mean((1, 2)))
    (height, width), (rows, columns) = block.queries, block.window
    drawn = block.weights.mean((2, 3))  # (B, windows, Q)
    maps = drawn.unflatten(2, block.window).unflatten(1, (height // rows, width // columns))
    whole = maps.permute(0, 1, 3, 2, 4).reshape(-1, height, width)
    return normalize_weights(torch.roll(whole, block.shift, dims=(1, 2)).flatten(1))


def staged_rollout(blocks: Sequence[BlockAttention], *, official: bool) -> tuple[Tensor, Size]:
    """Roll out attention on the coarsest grid of all blocks; gives weights (B, N) and that grid.

    Args:
        blocks: In the order they ran.
        official: As the published code does: minimum over heads, a tenth discarded, rows of sum 1;
            else Eq. 7 of the paper: mean over heads, rows of unit norm, the first block as it is.
    """
    if any(block.window not in (None, block.queries) for block in blocks):
        raise ModelError(
            "rollout needs attention over the whole grid, and windows cover only parts of it at"
            " this image size; use attention or uniform weights, or 224 px."
        )
    grids = [grid for block in blocks for grid in (block.queries, block.keys)]
    coarse = (min(g[0] for g in grids), min(g[1] for g in grids))
    maps = [coarse_map(block, coarse, official=official) for block in blocks]
    norm, first = ("l1", "normalized") if official else ("l2", "raw")
    joint = multiply_blocks(maps, norm=norm, first=first)  # type: ignore[arg-type]
    return normalize_weights(joint.mean(-2)), coarse


def coarse_map(block: BlockAttention, to: Size, *, official: bool) -> Tensor:
    """Fuse the heads of a block and average it to another grid, (B, n, n): keys, then queries."""
    weights = block.weights if block.window is None else block.weights[:, 0]
    fused = discard_smallest(weights.amin(1), 0.1) if official else weights.mean(1)
    fused = fused[:, block.prefix :, block.prefix :]
    keys = pool_patches(fused.transpose(1, 2), block.keys, to)  # (B, n, Q)
    return pool_patches(keys.transpose(1, 2), block.queries, to)
