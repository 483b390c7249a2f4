"""Is an explanation faithful? Measures of contributions (R, Q) of query and hit patches.

Three questions: does a patch point at its position in a warped copy of the image, does the score
fall when the patches that are said to matter are hidden, and do they lie on the object?
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearvit.retrieval.matching.pooling import Grid, pool_patches


def strongest_matches(contributions: Tensor) -> Tensor:
    """Give the hit patch that each query patch was matched with most, (R,); -1 for none."""
    best = contributions.max(1)
    return torch.where(best.values > 0, best.indices, -1)


def find_cells(points: Tensor, grid: Grid) -> Tensor:
    """Number the cells that points (M, 2), x and y from -1 to 1, lie in, (M,)."""
    size = torch.tensor([grid[1], grid[0]])
    cells = ((points + 1) / 2 * size).floor().long().clamp(min=0)
    x, y = torch.minimum(cells, size - 1).unbind(1)
    return y * grid[1] + x


def warp_accuracy(
    contributions: Tensor, positions: Tensor, centers: Tensor, grid: Grid, alphas: Sequence[float]
) -> Tensor:
    """Measure the matches of an image with a warped copy of it.

    Args:
        contributions: (R, R): rows of the image, columns of the copy.
        positions: True center of each patch in the copy, (R, 2): x, y, -1 to 1 inside.
        centers: Center of each patch, (R, 2).
        grid: Of both.
        alphas: A match counts within alpha of the longer side, taken as 2.

    Returns:
        (2 + A,): fraction of the patches whose strongest match is their true cell; of the
        contribution that lies in the true cell; and of the patches within each alpha. Patches that
        left the image, or that the explanation leaves out, do not count; NaN if none is left.
    """
    guess = strongest_matches(contributions)
    judged = (positions.abs() <= 1).all(1) & (guess >= 0)
    if not bool(judged.any()):
        return torch.full((2 + len(alphas),), torch.nan)
    rows, true = contributions[judged].clamp(min=0), positions[judged]
    cells = find_cells(true, grid)
    right = (guess[judged] == cells).double().mean()
    placed = rows.gather(1, cells[:, None]).sum() / rows.sum()
    distance = (centers[guess[judged]] - true).norm(dim=1)
    near = [(distance <= 2 * alpha).double().mean() for alpha in alphas]
    return torch.stack([right, placed.double(), *near])


def hiding_orders(contributions: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Order the query patches to hide: strongest first, weakest first, and random; (R,) each."""
    strong = contributions.sum(1).argsort(descending=True, stable=True)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randperm(len(contributions), generator=generator)
    return {"strongest": strong, "weakest": strong.flip(0), "random": random}


def hide_patches(pixels: Tensor, order: Tensor, fraction: float, grid: Grid) -> Tensor:
    """Hide the first patches of an order behind the mean color.

    Args:
        pixels: One normalized image, (3, height, width).
        order: Cells of the grid, (R,).
        fraction: Of the cells; at least one is hidden.
        grid: (H, W) that the cells are numbered on.
    """
    count = max(1, round(fraction * len(order)))
    mask = torch.zeros(grid[0] * grid[1], dtype=torch.bool)
    mask[order[:count]] = True
    height, width = pixels.shape[1:]
    rows = torch.arange(height) * grid[0] // height
    columns = torch.arange(width) * grid[1] // width
    return pixels.masked_fill(mask.reshape(grid)[rows][:, columns], 0.0)


def fraction_on_object(contributions: Tensor, mask: Tensor, grid: Grid) -> tuple[float, float]:
    """Give the fraction of the contributions on an object, and of the area that it covers.

    Args:
        contributions: (R, Q): rows of the image that the mask is of.
        mask: Object pixels, (height, width) bool.
        grid: (H, W) of the rows.
    """
    shape = (mask.shape[0], mask.shape[1])
    covered = pool_patches(mask.reshape(-1, 1).double(), shape, grid).squeeze(1)
    given = contributions.clamp(min=0).sum(1).double()
    return float((given * covered).sum() / given.sum().clamp(min=1e-12)), float(covered.mean())
