"""Do tokens find their place again? Patches matched between a photo and a known warp of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.dense.metrics import pck
from clearvit.dense.splits import read_photo
from clearvit.images import Picture

Grid = tuple[int, int]
TURN, ZOOM, SHIFT = math.radians(30), 1.25, 0.15  # largest changes of a drawn warp


def drawn_warp(seed: int) -> Tensor:
    """Draw an affine map from the warped photo to the photo, (2, 3), in coordinates of -1 to 1."""
    chance = np.random.default_rng(seed)
    angle, zoom = chance.uniform(-TURN, TURN), ZOOM ** chance.uniform(-1, 1)
    flip = 1.0 if chance.random() < 0.5 else -1.0
    cosine, sine = zoom * math.cos(angle), zoom * math.sin(angle)
    shift = chance.uniform(-2 * SHIFT, 2 * SHIFT, size=2)
    return torch.tensor(
        [[flip * cosine, -sine, shift[0]], [flip * sine, cosine, shift[1]]], dtype=torch.float32
    )


def warped(pixels: Tensor, warp: Tensor) -> Tensor:
    """Warp photos (B, 3, height, width); what lies outside is mirrored in."""
    grid = F.affine_grid(
        warp[None].expand(len(pixels), -1, -1), list(pixels.shape), align_corners=False
    )
    return F.grid_sample(
        pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def centres(grid: Grid) -> Tensor:
    """Middle of each patch, (N, 2): x, y from -1 to 1."""
    rows, columns = (((torch.arange(n) + 0.5) * 2 / n) - 1 for n in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def true_places(points: Tensor, warp: Tensor) -> Tensor:
    """Where points (M, 2) of the photo are in the warped photo, (M, 2)."""
    places: Tensor = torch.linalg.solve(warp[:, :2], (points - warp[:, 2]).T)
    return places.T


def matches(source: Tensor, target: Tensor) -> Tensor:
    """For each source token (M, C) the most similar target token (N, C) in cosine, (M,)."""
    return (F.normalize(source, dim=1) @ F.normalize(target, dim=1).T).argmax(1)


def matched_row(
    source: Tensor, target: Tensor, grid: Grid, warp: Tensor, size: Size, alphas: Sequence[float]
) -> NDArray[np.float64]:
    """Match all patches of a photo that the warp still shows.

    Args:
        source: Patch tokens of the photo, (N, C).
        target: Patch tokens of the warped photo, (N, C).
        grid: (H, W) in patches.
        warp: From the warped photo to the photo, (2, 3).
        size: (height, width) in pixels.
        alphas: A match counts within alpha * max(height, width) of its true place.

    Returns:
        PCK in percent for each alpha, and 1, (A + 1,).
    """
    points = centres(grid)
    real = true_places(points, warp)
    seen = (real.abs() <= 1).all(1)
    if not bool(seen.any()):
        return np.zeros(len(alphas) + 1)
    guess = points[matches(source[seen], target)]
    scale = np.array([size[1], size[0]]) / 2  # -1 to 1 is the whole side
    ours, true = guess.numpy() * scale, real[seen].numpy() * scale
    found = [pck(ours, true, alpha * max(size)) for alpha in alphas]
    return np.array([*found, 1.0])


def measure_warps(
    backbone: Backbone,
    pictures: Sequence[Picture],
    *,
    size: int | Size | None,
    alphas: Sequence[float],
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """Warp and match every photo, rows of `matched_row`, (V, A + 1)."""
    height_width = backbone.fitting_size(size)
    rows = []
    for index, picture in enumerate(pictures):
        image = read_photo(Path(str(picture.source)))
        pixels = backbone.preprocessing(image, height_width)[None]
        warp = drawn_warp(seed * 1_000_003 + index)
        both = torch.cat([pixels, warped(pixels, warp)])
        with torch.no_grad():
            tokens = backbone.forward(both.to(backbone.device, backbone.dtype))
        patches = tokens.patches.float().cpu()
        rows.append(matched_row(patches[0], patches[1], tokens.grid, warp, height_width, alphas))
        if progress:
            progress(index + 1, len(pictures))
    return np.stack(rows)
