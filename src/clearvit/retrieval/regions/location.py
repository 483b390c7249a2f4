"""Where a part of one image lies in another, by the similarity of their patches."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from clearvit.retrieval.matching.pooling import Grid

LENGTHS = tuple(0.2 + 0.05 * i for i in range(17))  # of a side of the box, of the side of the image
STEPS = 2  # positions tried per cell of the grid
STRETCH = 2.0  # how many times more than the other a side may change


def locate(similarity: Tensor, part: Grid, whole: Grid) -> tuple[float, float, float, float]:
    """Find the box of an image in which the patches of a part lie where they should.

    All boxes with sides of 0.2 to 1 are tried. The patches of the part are laid evenly over a box,
    and the box is worth the mean similarity of each with what lies below it, between the patches
    of the image by bilinear interpolation.

    Args:
        similarity: Cosines of the patches of the part with those of the image, (h*w, H*W).
        part: Grid (h, w) of the part.
        whole: Grid (H, W) of the image.

    Returns:
        x0, y0, x1, y1 as fractions of the width and the height.
    """
    (rows, spans_y), (columns, spans_x) = (_boxes(n, m) for n, m in zip(part, whole, strict=True))
    maps = similarity.float().reshape(*part, *whole)
    partial = torch.einsum("yia,ijab->yjb", rows, maps)
    worth = torch.einsum("yjb,xjb->yx", partial, columns)
    stretch = (spans_y[:, 1] - spans_y[:, 0])[:, None] / (spans_x[:, 1] - spans_x[:, 0])
    allowed = (stretch <= STRETCH + 1e-6) & (stretch >= 1 / STRETCH - 1e-6)
    best = int(worth.masked_fill(~allowed, -torch.inf).argmax())
    (top, bottom), (left, right) = (
        spans_y[best // len(spans_x)].tolist(),
        spans_x[best % len(spans_x)].tolist(),
    )
    return left, top, right, bottom


@lru_cache(maxsize=16)
def _boxes(cells: int, over: int) -> tuple[Tensor, Tensor]:
    """Along one side: interpolation weights (B, cells, over) of all boxes, and spans (B, 2)."""
    weights, spans = [], []
    centers = (torch.arange(cells) + 0.5) / cells
    for length in LENGTHS:
        for number in range(int((1 - length) * STEPS * over + 1e-6) + 1):
            start = number / (STEPS * over)
            at = ((start + centers * length) * over - 0.5).clamp(0, over - 1)
            weights.append((1 - (at[:, None] - torch.arange(over)).abs()).clamp(min=0))
            spans.append((start, min(start + length, 1.0)))
    return torch.stack(weights), torch.tensor(spans)
