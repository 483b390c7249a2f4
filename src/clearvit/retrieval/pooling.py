"""Patch tokens averaged to a coarser grid, of any size."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clearvit.errors import ModelError

Grid = tuple[int, int]
Rule = Literal["area", "adaptive"]
RULES = ("area", "adaptive")


def pool(
    patches: Tensor,
    grid: Grid,
    to: Grid = (7, 7),
    *,
    keep: Tensor | None = None,
    rule: Rule = "area",
) -> Tensor:
    """Average patch tokens to another grid.

    Normalise afterwards, not before: long and short tokens average as the network made them.

    Args:
        patches: (..., H*W, C).
        grid: (H, W) of the patches.
        to: Grid of the result.
        keep: Weights of the patches (..., H*W), such as `~flags` of artifacts; a cell that keeps
            nothing averages all of its patches.
        rule: "area" weighs each patch by the area it shares with the cell, so that all patches
            count alike; "adaptive" takes every patch that a cell touches in full, as
            `adaptive_avg_pool2d` does. They differ where `to` does not divide the grid.

    Returns:
        (..., h*w, C).
    """
    plain = _averaged(patches, grid, to, rule)
    if keep is None:
        return plain
    weights = keep.to(patches.dtype)[..., None]
    kept = _averaged(weights, grid, to, rule)
    weighted = _averaged(patches * weights, grid, to, rule)
    return torch.where(kept > 0, weighted / torch.where(kept > 0, kept, 1.0), plain)


def pool_marginal(
    marginal: Tensor, grid: Grid, to: Grid = (7, 7), *, rule: Rule = "area"
) -> Tensor:
    """Bring weights of patches (..., H*W) to another grid (..., h*w), with sum 1."""
    pooled = _averaged(marginal[..., None], grid, to, rule).squeeze(-1)
    return pooled / pooled.sum(-1, keepdim=True)


def _averaged(patches: Tensor, grid: Grid, to: Grid, rule: Rule) -> Tensor:
    if patches.shape[-2] != grid[0] * grid[1]:
        raise ModelError(
            f"{patches.shape[-2]} patches do not fill a grid of {grid[0]} x {grid[1]};"
            " pass tokens.patches with tokens.grid."
        )
    down, across = (
        shares(n, m, rule).to(patches) for n, m in zip(grid, to, strict=True)
    )  # (h, H), (w, W)
    image = patches.unflatten(-2, grid)
    return torch.einsum("hH,wW,...HWc->...hwc", down, across, image).flatten(-3, -2)


def shares(cells: int, to: int, rule: Rule = "area") -> Tensor:
    """How much each of `cells` counts in each of `to` intervals, (to, cells); rows sum to 1."""
    if min(cells, to) < 1:
        raise ModelError(f"cannot pool {cells} cells to {to}; both must be at least 1.")
    if rule not in RULES:
        raise ModelError(f"rule is '{rule}'; use {' or '.join(RULES)}.")
    start = torch.arange(to, dtype=torch.float64)[:, None] * cells / to
    end = (torch.arange(to, dtype=torch.float64)[:, None] + 1) * cells / to
    if rule == "adaptive":
        start = (torch.arange(to)[:, None] * cells // to).double()
        end = (-(-(torch.arange(to)[:, None] + 1) * cells // to)).double()
    left = torch.arange(cells, dtype=torch.float64)
    shared = (torch.minimum(end, left + 1) - torch.maximum(start, left)).clamp(min=0)
    return shared / shared.sum(1, keepdim=True)
