"""Maps made sharper by the image: a joint bilateral filter, in plain torch.

Kopf et al., "Joint Bilateral Upsampling", SIGGRAPH 2007: a pixel takes the mean of the cells around
it, weighted by their distance and by how alike their colors are. It knows edges of the image, not
of objects: it moves a boundary to the nearest change of color, right or wrong.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.preprocessing import Preprocessing
from clearvit.options import Size

RADIUS = 2  # cells to each side that a pixel looks at
SPACE = 1.0  # standard deviation of the distance, in cells
COLOR = 0.1  # standard deviation of the color, whose channels are 0..1
FLOOR = 1e-3  # weight of any color, so that a pixel like none of its cells takes their mean


def refine_by_image(
    maps: Tensor, images: Tensor, size: Size | None = None, *, color: float = COLOR
) -> Tensor:
    """Resize maps so that their edges follow those of the images.

    Args:
        maps: Tokens, scores or masks on a grid, (B, C, H, W).
        images: The same part of the images, (B, 3, height, width), channels 0..1.
        size: (rows, columns) of the result; the size of the images by default. The maps' own grid
            filters them where they are.
        color: How different a color may be, as a standard deviation; large values leave only the
            distance.

    Returns:
        (B, C, rows, columns).
    """
    target = size or (images.shape[2], images.shape[3])
    cells = (maps.shape[2], maps.shape[3])
    guide = F.interpolate(images.float(), target, mode="bilinear", antialias=True)
    coarse = F.interpolate(images.float(), cells, mode="bilinear", antialias=True)
    rows, columns = (_positions(*pair).to(maps.device) for pair in zip(target, cells, strict=True))
    values = maps.float()
    total = values.new_zeros(*values.shape[:2], *target)
    weights = values.new_zeros(len(values), 1, *target)
    for dy in range(-RADIUS, RADIUS + 1):
        y, down = _neighbor(rows, dy, cells[0])
        for dx in range(-RADIUS, RADIUS + 1):
            x, across = _neighbor(columns, dx, cells[1])
            seen = coarse[:, :, y][:, :, :, x]
            apart = (guide - seen).square().sum(1, keepdim=True)
            alike = torch.exp(-apart / (2 * color**2)) + FLOOR
            weight = torch.outer(down, across) * alike
            total += weight * values[:, :, y][:, :, :, x]
            weights += weight
    return total / weights


def denormalize(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Give normalized pixels (B, 3, height, width) their colors back, 0..1."""
    mean, std = (
        pixels.new_tensor(v)[:, None, None] for v in (preprocessing.mean, preprocessing.std)
    )
    return (pixels * std + mean).clamp(0, 1)


def _positions(pixels: int, cells: int) -> Tensor:
    """Where the centers of pixels lie among the cells, (pixels,)."""
    return (torch.arange(pixels) + 0.5) * (cells / pixels) - 0.5


def _neighbor(positions: Tensor, offset: int, cells: int) -> tuple[Tensor, Tensor]:
    """Give the cell `offset` cells away from each position, and its weight by distance."""
    cell = positions.round().long() + offset
    weight = torch.exp(-(cell - positions).square() / (2 * SPACE**2))
    inside = (cell >= 0) & (cell < cells)
    return cell.clamp(0, cells - 1), weight * inside
