"""LOST: one object per image from frozen features, and CorLoc to measure it.

Simeoni et al., "Localizing Objects with Self-Supervised Transformers and no Labels", BMVC 2021.
Boxes are (x0, y0, x1, y1), the ends exclusive.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clearvit.errors import ModelError

Grid = tuple[int, int]
Box = tuple[float, float, float, float]

BLOCK = 256  # rows of the affinity that exist at a time
ONE_SIDED = 0.999  # share of equal signs from which on degrees say nothing


@dataclass(frozen=True)
class Discovery:
    """One object on a grid of H x W patches."""

    box: tuple[int, int, int, int]  # (x0, y0, x1, y1) in patches, ends exclusive
    seed: int  # patch the object grew from, row by row
    mask: Tensor  # (H, W) bool, the connected patches around the seed
    score: float  # the higher, the surer; comparable within one method only
    degenerate: bool = False  # the features could not tell patches apart


def lost(features: Tensor, grid: Sequence[int], k: int = 100, *, bias: float = 0.0) -> Discovery:
    """Find the object of one image by seed expansion, as published.

    The affinity is A = F F^T + bias. The seed is the patch with the fewest positive affinities to
    others; of the k patches with the fewest, those with positive affinity to the seed vote, and
    the object is the connected part around the seed where the sum of their affinities is positive.
    Among patches of equal degree the lower index comes first; the published code leaves this open.

    Args:
        features: One row per patch, row by row, without prefix tokens, (N, C). Published: keys of
            the last block, heads side by side, not normalised.
        grid: (H, W) in patches.
        k: Patches that may vote; 100 whatever N is in the published code.
        bias: Added to every affinity; sensible between -1 and 0 for features of unit length.
    """
    rows, columns = checked_grid(features, grid)
    if k < 1:
        raise ModelError(f"k is {k}; at least one patch must vote. The published value is 100.")
    features = features.detach().float() if features.dtype != torch.float64 else features.detach()
    degree = degrees(features, bias=bias)
    order = torch.argsort(degree, stable=True)
    seed = int(order[0])
    voters = order[:k]
    voters = voters[features[voters] @ features[seed] + bias > 0]
    # The sum of affinities to the voters is the affinity to their sum: no N x N matrix is needed.
    votes = features @ features[voters].sum(0) + bias * len(voters)
    mask = component((votes > 0).view(rows, columns), seed)
    count = len(features)
    share = float(degree.double().mean()) / max(count - 1, 1)
    degenerate = max(share, 1 - share) > ONE_SIDED or not len(voters)
    if degenerate:
        warnings.warn(
            f"{100 * share:.1f} % of the affinities are positive, so all patches look alike to LOST"
            " and the box means nothing. Centre the features, pass a bias, or use method='ours'.",
            stacklevel=2,
        )
    return Discovery(box_of(mask), seed, mask, 1 - int(degree[seed]) / max(count, 1), degenerate)


def degrees(features: Tensor, *, bias: float = 0.0) -> Tensor:
    """Count for every patch the others with positive affinity, (N, C) -> (N,).

    The affinity is symmetric: only blocks on and above its diagonal are computed, one at a time.
    """
    count = len(features)
    features = features.detach()
    degree = torch.zeros(count, dtype=features.dtype, device=features.device)
    space = features.new_empty(min(BLOCK, count) * count)  # once: fresh pages cost as much as sums
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        block = space[: (stop - start) * (count - start)].view(stop - start, count - start)
        torch.mm(features[start:stop], features[start:].T, out=block)
        positive = block.gt_(-bias)
        itself = positive.diagonal()
        degree[start:stop] += positive.sum(1) - itself
        degree[stop:] += positive[:, stop - start :].sum(0)
    return degree.long()


def component(mask: Tensor, seed: int) -> Tensor:
    """Keep the 4-connected part of a mask (H, W) around a patch; outside the mask, that patch."""
    framed = np.pad(mask.cpu().numpy(), 1)  # no neighbour of a patch leaves the frame
    unseen, kept = bytearray(framed.tobytes()), bytearray(framed.size)
    (row, column), across = divmod(seed, mask.shape[1]), framed.shape[1]
    start = (row + 1) * across + column + 1
    waiting = [start] if unseen[start] else []
    kept[start], unseen[start] = 1, 0
    while waiting:
        place = waiting.pop()
        for near in (place - across, place + across, place - 1, place + 1):
            if unseen[near]:
                kept[near], unseen[near] = 1, 0
                waiting.append(near)
    whole = np.frombuffer(kept, dtype=bool).reshape(framed.shape)
    return torch.from_numpy(whole[1:-1, 1:-1].copy())


def box_of(mask: Tensor) -> tuple[int, int, int, int]:
    """Enclose the True cells of a mask (H, W): (x0, y0, x1, y1), ends exclusive."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def to_pixels(box: Sequence[float], grid: Sequence[int], size: Sequence[float]) -> Box:
    """Turn a box in patches of a grid (H, W) into pixels of a picture (height, width)."""
    across, down = size[1] / grid[1], size[0] / grid[0]
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def checked_grid(features: Tensor, grid: Sequence[int]) -> Grid:
    """Return the grid as (H, W) if the features (N, C) fit it and are finite."""
    rows, columns = int(grid[0]), int(grid[1])
    if features.ndim != 2 or len(features) != rows * columns or not len(features):
        raise ModelError(
            f"features of shape {tuple(features.shape)} do not fit a grid of {rows} x {columns};"
            " give (N, C) with N = rows x columns, without class token and registers."
        )
    # A sum that is finite has finite parts, and costs a fiftieth of looking at each of them.
    if not bool(torch.isfinite(features.sum())) and not bool(torch.isfinite(features).all()):
        raise ModelError("features hold NaN or infinity; run the network in float32.")
    return rows, columns


def overlaps(box: ArrayLike, truth: ArrayLike) -> NDArray[np.float64]:
    """IoU of one box (4,) with each of some boxes (M, 4); ends exclusive, no +1."""
    one = np.asarray(box, dtype=np.float64).reshape(4)
    others = np.asarray(truth, dtype=np.float64).reshape(-1, 4)
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    shared = np.clip(sides, 0, None).prod(1)
    union = (one[2:] - one[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - shared
    quotient: NDArray[np.float64] = shared / np.where(union > 0, union, 1.0)
    return quotient


def hits(
    predicted: Sequence[Any], truth: Sequence[Any], *, threshold: float = 0.5
) -> NDArray[np.bool_]:
    """Tell for each image whether its box overlaps one of the true boxes enough, (I,).

    Args:
        predicted: One box (4,) per image, or several (K, 4) of which the first counts, or None.
        truth: The true boxes (M, 4) of each image, in the same units.
        threshold: Smallest IoU of a hit.
    """
    if len(predicted) != len(truth):
        raise ModelError(
            f"{len(predicted)} predictions for {len(truth)} images with true boxes; give one box"
            " per image, None where nothing was found."
        )
    found = []
    for box, boxes in zip(predicted, truth, strict=True):
        first = np.asarray([] if box is None else box, dtype=np.float64).reshape(-1, 4)[:1]
        best = overlaps(first, boxes).max(initial=0.0) if len(first) else 0.0
        found.append(best >= threshold)
    return np.array(found, dtype=bool)


def corloc(predicted: Sequence[Any], truth: Sequence[Any], *, threshold: float = 0.5) -> float:
    """Percent of images whose box is right, 0 to 100; see `hits` for the arguments.

    An image without true boxes cannot be right: leave such images out beforehand.
    """
    if not len(truth):
        raise ModelError("CorLoc of no images is not defined; give at least one.")
    return 100.0 * float(hits(predicted, truth, threshold=threshold).mean())
