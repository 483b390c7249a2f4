"""Views of a picture: shifts by whole patches, and mirror images.

The content moves, the position embeddings stay: features of the content move along, artifacts do
not. "Vision Transformers with Self-Distilled Registers" (PH-Reg), arXiv 2505.21501.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from clearvit.errors import ModelError

FRACTION = 0.15  # of the grid: how far a picture is shifted at most
POOL = 10  # candidates per view of the official sampler
TRIES = 1000  # random starts of a lattice before giving up on covering every patch


@dataclass(frozen=True)
class Views:
    """How n views differ from the picture."""

    offsets: Tensor  # (n, 2) whole patches (dy, dx); the content moves up by dy and left by dx
    flips: Tensor  # (n,) bool; mirrored left to right after the shift

    def __post_init__(self) -> None:
        if self.offsets.ndim != 2 or self.offsets.shape != (len(self.flips), 2):
            raise ModelError(
                f"views need offsets (n, 2) and flips (n,), not {tuple(self.offsets.shape)} and"
                f" {tuple(self.flips.shape)}."
            )

    def __len__(self) -> int:
        return len(self.flips)

    def counts(self, grid: tuple[int, int]) -> Tensor:
        """In how many views each patch of the picture is seen, (H, W)."""
        counts = torch.zeros(grid, dtype=torch.long)
        for dy, dx in self.offsets.tolist():
            counts[_seen(dy, grid[0]), _seen(dx, grid[1])] += 1
        return counts


def reach(grid: tuple[int, int], fraction: float = FRACTION) -> tuple[int, int]:
    """Largest shift along both axes, in whole patches."""
    if not 0 <= fraction < 1:
        raise ModelError(f"the largest shift is {fraction} of the grid; use a share in [0, 1).")
    return round(fraction * grid[0]), round(fraction * grid[1])


def official_views(
    grid: tuple[int, int], count: int = 10, *, fraction: float = FRACTION, seed: int = 0
) -> Views:
    """Draw views as the published code does: farthest points of a random pool, view 0 untouched.

    The draws are those of the published code for the same seed, so the views are the same too.
    Beyond the number of distinct offsets it repeats itself; so do we.
    """
    _check(count)
    vertical, horizontal = reach(grid, fraction)
    seeds = random.Random(seed)
    pool_seed, flip_seed, start_seed = (seeds.randint(1, 999_999_999) for _ in range(3))
    draw = np.random.default_rng(pool_seed)
    rows = draw.integers(-vertical, vertical + 1, POOL * count)
    columns = draw.integers(-horizontal, horizontal + 1, POOL * count)
    pool = torch.from_numpy(np.stack([rows, columns], axis=1))
    start = torch.randint(POOL * count, (1,), generator=torch.Generator().manual_seed(start_seed))
    offsets = pool[_farthest(pool, int(start), count)]
    flips = torch.from_numpy(np.random.default_rng(flip_seed).integers(0, 2, count)).bool()
    offsets[0], flips[0] = 0, False
    return Views(offsets, flips)


def _farthest(pool: Tensor, current: int, count: int) -> list[int]:
    chosen = []
    nearest = torch.full((len(pool),), torch.iinfo(torch.long).max)
    for _ in range(count):
        chosen.append(current)
        nearest = torch.minimum(nearest, (pool - pool[current]).square().sum(1))
        current = int(nearest.argmax())
    return chosen


def lattice_views(
    grid: tuple[int, int], count: int = 10, *, fraction: float = FRACTION, seed: int = 0
) -> Views:
    """Spread views evenly: a randomly shifted rank-1 lattice, every other view mirrored.

    The effect of a view is nearly a sum of what its row, column and mirroring do, so each of these
    is balanced, and so is each pair of row or column with mirroring. From the number of distinct
    views on, it is all of them.
    """
    _check(count)
    vertical, horizontal = reach(grid, fraction)
    height, width = 2 * vertical + 1, 2 * horizontal + 1
    if count >= 2 * height * width:
        return all_views(grid, fraction=fraction)
    generator = torch.Generator().manual_seed(seed)
    steps = torch.arange(count) / count
    turn = _turn(count)
    for _ in range(TRIES):
        u, v = torch.rand(2, generator=generator).tolist()
        mirror = int(torch.randint(2, (1,), generator=generator))
        rows = (height * ((steps + u) % 1)).long() - vertical
        columns = (width * ((turn * steps + v) % 1)).long() - horizontal
        views = Views(torch.stack([rows, columns], 1), (torch.arange(count) + mirror) % 2 == 1)
        if bool((views.counts(grid) > 0).all()):
            return views
    return Views(torch.cat([torch.zeros(1, 2).long(), views.offsets[1:]]), views.flips)


def all_views(grid: tuple[int, int], *, fraction: float = FRACTION) -> Views:
    """Every shift within reach, as it is and mirrored."""
    vertical, horizontal = reach(grid, fraction)
    shifts = product(range(-vertical, vertical + 1), range(-horizontal, horizontal + 1), (0, 1))
    rows = torch.tensor(list(shifts))
    return Views(rows[:, :2], rows[:, 2].bool())


def _turn(count: int) -> int:
    """Multiplier of the lattice: coprime to the count, with the points farthest apart."""
    steps = torch.arange(1, count)
    best, widest = 1, -1.0
    for turn in range(1, count):
        if math.gcd(turn, count) == 1:
            around = torch.stack([steps, turn * steps], 1) / count
            apart = around - around.round()  # on a torus
            nearest = float(apart.square().sum(1).min()) if len(steps) else 0.0
            if nearest > widest + 1e-9:
                best, widest = turn, nearest
    return best


def _check(count: int) -> None:
    if count < 1:
        raise ModelError(f"{count} views make no average; give at least 1.")


def apply_view(
    pixels: Tensor, offset: tuple[int, int], flip: bool, patch: tuple[int, int], fill: Tensor
) -> Tensor:
    """Shift pixels (B, 3, height, width) by whole patches, mirror them, and fill what is uncovered.

    Args:
        pixels: Normalised pictures.
        offset: (dy, dx) in patches; `view[y - dy, x - dx] = picture[y, x]`.
        flip: Mirror left to right, after the shift.
        patch: (height, width) of a patch in pixels.
        fill: Normalised colour of uncovered pixels, (3,).
    """
    dy, dx = offset[0] * patch[0], offset[1] * patch[1]
    height, width = pixels.shape[2:]
    view = fill.to(pixels).reshape(1, -1, 1, 1).expand_as(pixels).clone()
    rows, columns = _seen(dy, height), _seen(dx, width)
    view[:, :, _moved(rows, dy), _moved(columns, dx)] = pixels[:, :, rows, columns]
    return view.flip(3) if flip else view


def brought_back(
    features: Tensor, offset: tuple[int, int], flip: bool
) -> tuple[tuple[slice, slice], Tensor]:
    """Find which patches of the picture a view shows, and their features.

    Args:
        features: Of one view, (..., H, W, C).
        offset: (dy, dx) in patches.
        flip: Whether the view was mirrored.

    Returns:
        Rows and columns of the picture's grid, and the features (..., rows, columns, C).
    """
    upright = features.flip(-2) if flip else features
    rows, columns = (_seen(d, n) for d, n in zip(offset, features.shape[-3:-1], strict=True))
    inside = upright[..., _moved(rows, offset[0]), _moved(columns, offset[1]), :]
    return (rows, columns), inside


def taken_along(features: Tensor, offset: tuple[int, int], flip: bool) -> tuple[Tensor, Tensor]:
    """Move the features of a picture as a view moves its content; the way there of `brought_back`.

    Args:
        features: Of the picture, (H, W, C).
        offset: (dy, dx) in patches.
        flip: Whether the view is mirrored.

    Returns:
        Features at their places in the view (H, W, C), zero where it shows nothing of the picture,
        and which places show something, (H, W) bool.
    """
    rows, columns = (_seen(d, n) for d, n in zip(offset, features.shape[:2], strict=True))
    place = (_moved(rows, offset[0]), _moved(columns, offset[1]))
    moved = torch.zeros_like(features)
    shown = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
    moved[place], shown[place] = features[rows, columns], True
    return (moved.flip(1), shown.flip(1)) if flip else (moved, shown)


def _seen(shift: int, length: int) -> slice:
    """Places of the picture that a shift leaves in view."""
    return slice(min(max(0, shift), length), max(min(length, length + shift), 0))


def _moved(places: slice, shift: int) -> slice:
    return slice(places.start - shift, places.stop - shift)
