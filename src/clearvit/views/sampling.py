"""Which views of an image to take: shifts in pixels, and mirror images.

The content moves, the position embeddings stay: features of the content move along, artifacts do
not. "Vision Transformers with Self-Distilled Registers" (PH-Reg), arXiv 2505.21501, shifts by whole
patches; shifts by fractions of a patch also show what lies between two patches.
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
from clearvit.options import Size
from clearvit.views.config import FRACTION, Sampler

POOL = 10  # candidates per view of the official sampler
TRIES = 1000  # random starts of a lattice before giving up on covering every patch


@dataclass(frozen=True)
class Views:
    """How n views differ from the image."""

    offsets: Tensor  # (n, 2) pixels (dy, dx); the content moves up by dy and left by dx
    flips: Tensor  # (n,) bool; mirrored left to right after the shift

    def __post_init__(self) -> None:
        if self.offsets.ndim != 2 or self.offsets.shape != (len(self.flips), 2):
            raise ModelError(
                f"views need offsets (n, 2) and flips (n,), not {tuple(self.offsets.shape)} and"
                f" {tuple(self.flips.shape)}."
            )

    def __len__(self) -> int:
        return len(self.flips)

    def __getitem__(self, some: slice) -> Views:
        return Views(self.offsets[some], self.flips[some])

    def pairs(self) -> list[tuple[tuple[int, int], bool]]:
        """Every view as ((dy, dx), flip)."""
        offsets = [(int(dy), int(dx)) for dy, dx in self.offsets.tolist()]
        return list(zip(offsets, self.flips.tolist(), strict=True))


def sample_views(
    grid: Size, count: int, *, patch: Size, sampler: Sampler, scale: int, fraction: float, seed: int
) -> Views:
    """Choose views by name: "lattice" (phases for the scale), "whole" or "official"."""
    if sampler == "official":
        return official_views(grid, count, patch=patch, fraction=fraction, seed=seed)
    phases = 1 if sampler == "whole" else phases_for(count, patch, scale)
    return lattice_views(grid, count, patch=patch, phases=phases, fraction=fraction, seed=seed)


def phases_for(count: int, patch: Size, scale: int) -> int:
    """How many sub-patch phases per axis suit a scale: at least half patches, if views allow."""
    wanted = min(max(2, scale), *patch)
    return wanted if count >= wanted**2 else max(1, math.isqrt(count))


def reach(grid: Size, fraction: float = FRACTION) -> Size:
    """Largest shift along both axes, in whole patches."""
    if not 0 <= fraction < 1:
        raise ModelError(f"the largest shift is {fraction} of the grid; use a fraction in [0, 1).")
    return round(fraction * grid[0]), round(fraction * grid[1])


def official_views(
    grid: Size, count: int = 10, *, patch: Size, fraction: float = FRACTION, seed: int = 0
) -> Views:
    """Sample views as the published code does: farthest points of a random pool, view 0 untouched.

    The random numbers are those of the published code for the same seed, so the views are the same
    too. Beyond the number of distinct offsets it repeats itself; so do we.
    """
    _check(count)
    vertical, horizontal = reach(grid, fraction)
    seeds = random.Random(seed)
    pool_seed, flip_seed, start_seed = (seeds.randint(1, 999_999_999) for _ in range(3))
    rng = np.random.default_rng(pool_seed)
    rows = rng.integers(-vertical, vertical + 1, POOL * count)
    columns = rng.integers(-horizontal, horizontal + 1, POOL * count)
    pool = torch.from_numpy(np.stack([rows, columns], axis=1))
    start = torch.randint(POOL * count, (1,), generator=torch.Generator().manual_seed(start_seed))
    offsets = pool[_farthest(pool, int(start), count)]
    flips = torch.from_numpy(np.random.default_rng(flip_seed).integers(0, 2, count)).bool()
    offsets[0], flips[0] = 0, False
    return Views(offsets * torch.tensor(patch), flips)


def _farthest(pool: Tensor, current: int, count: int) -> list[int]:
    chosen = []
    nearest = torch.full((len(pool),), torch.iinfo(torch.long).max)
    for _ in range(count):
        chosen.append(current)
        nearest = torch.minimum(nearest, (pool - pool[current]).square().sum(1))
        current = int(nearest.argmax())
    return chosen


def lattice_views(
    grid: Size,
    count: int = 10,
    *,
    patch: Size,
    phases: int = 2,
    fraction: float = FRACTION,
    seed: int = 0,
) -> Views:
    """Spread views evenly over whole-patch shifts, sub-patch phases and mirroring.

    Whole-patch shifts form a randomly shifted rank-1 lattice. The `phases` x `phases` sub-patch
    phases take turns, so each occurs equally often (give or take one), and so does mirroring within
    each of them. From the number of distinct views on, the result is all of them.

    Args:
        grid: (H, W) in patches.
        count: How many views.
        patch: (height, width) of a patch in pixels.
        phases: Sub-patch phases per axis: 1 shifts by whole patches only, 2 by half patches too.
        fraction: Largest whole-patch shift, as a fraction of the grid.
        seed: Seed of the lattice's start.
    """
    _check(count)
    vertical, horizontal = reach(grid, fraction)
    height, width = 2 * vertical + 1, 2 * horizontal + 1
    if count >= 2 * height * width * phases**2:
        return all_views(grid, patch=patch, phases=phases, fraction=fraction)
    generator = torch.Generator().manual_seed(seed)
    index, turn = torch.arange(count), _turn(count)
    for _ in range(TRIES):
        u, v = torch.rand(2, generator=generator).tolist()
        mirror, first = torch.randint(2 * phases**2, (2,), generator=generator).tolist()
        rows = (height * ((index / count + u) % 1)).long() - vertical
        columns = (width * ((turn * index / count + v) % 1)).long() - horizontal
        if _cover(rows, columns, grid):
            break
    else:
        rows[0] = columns[0] = 0  # the untouched image shows every patch
    phase = (index + first) % phases**2
    cycle = (index + first) // phases**2 if phases % 2 == 0 else torch.zeros_like(index)
    shifts = torch.stack([rows, columns], 1) * torch.tensor(patch)
    fine = torch.stack([phase % phases, phase // phases], 1) * torch.tensor(patch)
    offsets = shifts + (fine / phases).round().long()
    return Views(offsets, (index + cycle + mirror) % 2 == 1)


def all_views(grid: Size, *, patch: Size, phases: int = 1, fraction: float = FRACTION) -> Views:
    """Every whole-patch shift within reach at every phase, as it is and mirrored."""
    vertical, horizontal = reach(grid, fraction)
    steps = [
        [k * side + round(f * side / phases) for k in range(-most, most + 1) for f in range(phases)]
        for most, side in zip((vertical, horizontal), patch, strict=True)
    ]
    table = torch.tensor(list(product(*steps, (0, 1))))
    return Views(table[:, :2], table[:, 2].bool())


def _cover(rows: Tensor, columns: Tensor, grid: Size) -> bool:
    """Whether every patch is in at least one of the views shifted by whole patches, (n,) each."""
    seen = [
        ((torch.arange(length) - shifts[:, None]) % (2 * length) < length).float()
        for shifts, length in zip((rows, columns), grid, strict=True)
    ]  # (n, H) and (n, W); shifts stay below the length
    return bool((seen[0].T @ seen[1] > 0).all())


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
