"""Is an explanation true? Measures of contributions (R, Q) of query patches and hit patches.

Three questions: does a patch point at its place in a warped copy of the photo, does the score fall
when the patches that are said to matter are hidden, and do they lie on the object?
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearvit.retrieval.pooling import Grid, pool


def strongest(contributions: Tensor) -> Tensor:
    """Give the hit patch that each query patch was matched with most, (R,); -1 for none."""
    best = contributions.max(1)
    return torch.where(best.values > 0, best.indices, -1)


def cell_of(points: Tensor, grid: Grid) -> Tensor:
    """Number the cells that points (M, 2), x and y from -1 to 1, lie in, (M,)."""
    size = torch.tensor([grid[1], grid[0]])
    cells = ((points + 1) / 2 * size).floor().long().clamp(min=0)
    x, y = torch.minimum(cells, size - 1).unbind(1)
    return y * grid[1] + x


def warp_accuracy(
    contributions: Tensor, places: Tensor, centres: Tensor, grid: Grid, alphas: Sequence[float]
) -> Tensor:
    """Judge the matches of a photo with a warped copy of it.

    Args:
        contributions: (R, R): rows of the photo, columns of the copy.
        places: Where the middle of each patch really is in the copy, (R, 2): x, y, -1 to 1 inside.
        centres: Middle of each patch, (R, 2).
        grid: Of both.
        alphas: A match counts within alpha of the longer side, taken as 2.

    Returns:
        (2 + A,): share of the patches whose strongest match is the cell of their true place; of the
        contribution that lies in the true cell; and of the patches within each alpha. Patches that
        left the picture, or that the explanation leaves out, do not count; NaN if none is left.
    """
    guess = strongest(contributions)
    judged = (places.abs() <= 1).all(1) & (guess >= 0)
    if not bool(judged.any()):
        return torch.full((2 + len(alphas),), torch.nan)
    rows, true = contributions[judged].clamp(min=0), places[judged]
    cells = cell_of(true, grid)
    right = (guess[judged] == cells).double().mean()
    placed = rows.gather(1, cells[:, None]).sum() / rows.sum()
    distance = (centres[guess[judged]] - true).norm(dim=1)
    near = [(distance <= 2 * alpha).double().mean() for alpha in alphas]
    return torch.stack([right, placed.double(), *near])


def hiding_orders(contributions: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Order the query patches to hide: strongest first, weakest first, and by chance; (R,) each."""
    strong = contributions.sum(1).argsort(descending=True, stable=True)
    generator = torch.Generator().manual_seed(seed)
    chance = torch.randperm(len(contributions), generator=generator)
    return {"strongest": strong, "weakest": strong.flip(0), "chance": chance}


def hidden(pixels: Tensor, order: Tensor, share: float, grid: Grid) -> Tensor:
    """Hide the first patches of an order behind the mean colour.

    Args:
        pixels: One normalised picture, (3, height, width).
        order: Cells of the grid, (R,).
        share: Of the cells, at least one is hidden.
        grid: (H, W) that the cells are numbered on.
    """
    count = max(1, round(share * len(order)))
    mask = torch.zeros(grid[0] * grid[1], dtype=torch.bool)
    mask[order[:count]] = True
    height, width = pixels.shape[1:]
    rows = torch.arange(height) * grid[0] // height
    columns = torch.arange(width) * grid[1] // width
    return pixels.masked_fill(mask.reshape(grid)[rows][:, columns], 0.0)


def on_object(contributions: Tensor, mask: Tensor, grid: Grid) -> tuple[float, float]:
    """Give the share of the contributions that lies on an object, and the object's share of area.

    Args:
        contributions: (R, Q): rows of the photo that the mask is of.
        mask: Object pixels, (height, width) bool.
        grid: (H, W) of the rows.
    """
    shape = (mask.shape[0], mask.shape[1])
    covered = pool(mask.reshape(-1, 1).double(), shape, grid).squeeze(1)
    given = contributions.clamp(min=0).sum(1).double()
    return float((given * covered).sum() / given.sum().clamp(min=1e-12)), float(covered.mean())
