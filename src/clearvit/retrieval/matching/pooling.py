"""Patch tokens averaged to a coarser grid, of any size."""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.errors import ModelError

Grid = tuple[int, int]


def pool_patches(
    patches: Tensor, grid: Grid, to: Grid = (7, 7), *, keep: Tensor | None = None
) -> Tensor:
    """Average patch tokens to another grid; a patch counts by the area it shares with a cell.

    Normalize afterwards, not before: tokens of high and low norm average as the network made them.

    Args:
        patches: (..., H*W, C).
        grid: (H, W) of the patches.
        to: Grid of the result.
        keep: Weights of the patches (..., H*W), such as `~flags` of artifacts; a cell that keeps
            nothing averages all of its patches.

    Returns:
        (..., h*w, C).
    """
    plain = _average(patches, grid, to)
    if keep is None:
        return plain
    weights = keep.to(patches.dtype)[..., None]
    kept = _average(weights, grid, to)
    weighted = _average(patches * weights, grid, to)
    return torch.where(kept > 0, weighted / torch.where(kept > 0, kept, 1.0), plain)


def pool_weights(weights: Tensor, grid: Grid, to: Grid = (7, 7)) -> Tensor:
    """Bring weights of patches (..., H*W) to another grid (..., h*w), with sum 1."""
    pooled = _average(weights[..., None], grid, to).squeeze(-1)
    return pooled / pooled.sum(-1, keepdim=True)


def _average(patches: Tensor, grid: Grid, to: Grid) -> Tensor:
    if patches.shape[-2] != grid[0] * grid[1]:
        raise ModelError(
            f"{patches.shape[-2]} patches do not fill a grid of {grid[0]} x {grid[1]};"
            " pass tokens.patches with tokens.grid."
        )
    down, across = (
        _overlaps(n, m).to(patches) for n, m in zip(grid, to, strict=True)
    )  # (h, H), (w, W)
    image = patches.unflatten(-2, grid)
    return torch.einsum("hH,wW,...HWc->...hwc", down, across, image).flatten(-3, -2)


def _overlaps(cells: int, to: int) -> Tensor:
    """Fraction of each of `to` intervals that each of `cells` covers, (to, cells)."""
    if min(cells, to) < 1:
        raise ModelError(f"cannot pool {cells} cells to {to}; both must be at least 1.")
    start = torch.arange(to, dtype=torch.float64)[:, None] * cells / to
    end = (torch.arange(to, dtype=torch.float64)[:, None] + 1) * cells / to
    left = torch.arange(cells, dtype=torch.float64)
    shared = (torch.minimum(end, left + 1) - torch.maximum(start, left)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True)
