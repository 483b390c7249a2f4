"""Our own discovery: one normalised cut through what many features agree on, nothing to tune.

Each feature (tokens and values of the later blocks) gives a matrix of cosines. How positive these
are differs from model to model and block to block, which is what a hand-set bias repairs in LOST.
Here each matrix is centred at its own mean and divided by its own spread; then all can be averaged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.dense.discovery import Discovery, box_of, checked_grid, component
from clearvit.dense.tokencut import FAINT, contrast, second_eigenvector
from clearvit.errors import ModelError
from clearvit.tails import find_tail

SMALLEST = 0.01  # share of the patches that a further object has at least
BACKGROUND = 0.3  # what holds more of the border ring than this is no further object
FEWEST = 16  # patches; fewer are not cut again


def consensus(
    features: Sequence[Tensor],
    grid: Sequence[int],
    *,
    objects: int = 1,
    exclude: Tensor | None = None,
) -> list[Discovery]:
    """Find objects of one image, one after the other; at least one.

    The averaged affinity is cut in two. The object is the side that touches the border of the
    picture less, cut half-way between the extremes of the eigenvector, and of it the connected
    part around the maximum. Its patches are taken away before the next object is looked for; the
    search ends at specks and at what looks like background.

    Args:
        features: Features of the same N patches, row by row, without prefix tokens, (N, C) each.
        grid: (H, W) in patches.
        objects: Most objects to return.
        exclude: Patches whose features are not to be trusted, (N,) bool; in the mask they follow
            their neighbours.
    """
    if not features or objects < 1:
        raise ModelError("discovery needs at least one feature and objects >= 1.")
    shape = checked_grid(features[0], grid)
    trusted = torch.ones(len(features[0]), dtype=torch.bool)
    if exclude is not None and not bool(exclude.all()):
        trusted = ~exclude.cpu()
    affinity = mean_affinity(features, trusted)
    if float(affinity[trusted][:, trusted].std()) < 1e-6:
        warnings.warn("all patches have the same features; the box means nothing.", stacklevel=2)
        whole = torch.ones(shape, dtype=torch.bool)
        return [Discovery(box_of(whole), 0, whole, 0.0, degenerate=True)]
    free = torch.ones(len(affinity), dtype=torch.bool)
    found: list[Discovery] = []
    while len(found) < objects:
        cut = _cut(affinity, free, trusted, shape)
        if found and not _is_object(cut, shape):
            break
        found.append(cut)
        free &= ~cut.mask.flatten()
        if int((free & trusted).sum()) < FEWEST:
            break
    return found


def _is_object(cut: Discovery, shape: tuple[int, int]) -> bool:
    """Tell whether a further cut is worth a box."""
    everywhere = torch.ones(cut.mask.numel(), dtype=torch.bool)
    border = _border_share(cut.mask.flatten(), everywhere, shape)
    large = float(cut.mask.float().mean()) >= SMALLEST
    return large and border <= BACKGROUND and cut.score > 0


def mean_affinity(features: Sequence[Tensor], trusted: Tensor | None = None) -> Tensor:
    """Average the cosines of several features, each in units of its spread, F x (N, C) -> (N, N).

    Zero is the mean cosine between different patches: the bias of LOST, taken from the image. Mean
    and spread are those of the `trusted` patches, (N,) bool.
    """
    total = torch.zeros((), device=features[0].device)
    for feature in features:
        unit = F.normalize(feature.detach().float(), dim=1)
        judges = unit if trusted is None else unit[trusted.to(unit.device)]
        count = len(judges)
        # Sums over all pairs follow from the sum and the second moment of the features.
        middle = (judges.sum(0).square().sum() - count) / max(count * count - count, 1)
        mean = judges.sum(0).square().sum() / count**2
        square = (judges.T @ judges).square().sum() / count**2
        spread = (square - 2 * middle * mean + middle**2).clamp(min=0).sqrt()
        total = total + (unit @ unit.T - middle) / spread.clamp(min=1e-6)
    return total / len(features)


def unusual(norms: Tensor) -> Tensor:
    """Mark artifact tokens of one image by their norms before the final norm, (L, N) -> (N,) bool.

    Each of the L blocks is judged alone; a token that stands out in one of them is marked. Most
    images have none, and the detector says so.
    """
    marked = torch.zeros(norms.shape[1], dtype=torch.bool)
    for block in norms.float().cpu():
        for side in ("high", "low"):
            tail = find_tail(block[None], side)
            if tail is not None:
                marked |= tail.flags(block[None])[0]
    return marked


def _cut(affinity: Tensor, free: Tensor, trusted: Tensor, shape: tuple[int, int]) -> Discovery:
    """Find one object among the free patches."""
    used = free & trusted if bool((free & trusted).any()) else free
    places = used.nonzero()[:, 0].to(affinity.device)
    part = affinity[places][:, places]
    vector = second_eigenvector(part.clamp(min=FAINT)).cpu()
    values = torch.full(free.shape, float("nan"))
    values[used] = vector
    values = _filled(values.view(shape), free.view(shape)).flatten()
    if _border_share(values > vector.mean(), free, shape) > _border_share(
        values <= vector.mean(), free, shape
    ):
        values, vector = -values, -vector
    known = torch.where(used, values, float("-inf"))
    seed = int(known.argmax())
    mask = component((values > (vector.max() + vector.min()) / 2).view(shape), seed)
    return Discovery(box_of(mask), seed, mask, contrast(affinity, mask))


def _border_share(side: Tensor, free: Tensor, shape: tuple[int, int]) -> float:
    """Share of the border ring of the grid that one side holds, of what is free there."""
    ring = torch.ones(shape, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    ring = ring.flatten() & free
    return float(side[ring].float().mean()) if bool(ring.any()) else 0.0


def _filled(values: Tensor, free: Tensor) -> Tensor:
    """Give cells without a value the mean of their neighbours, outwards from those that have one.

    Cells (H, W) that are not free stay NaN, which no comparison holds for.
    """
    kernel = torch.ones(1, 1, 3, 3)
    while bool((missing := values.isnan() & free).any()):
        known = (~values.isnan()).float()[None, None]
        total = F.conv2d(values.nan_to_num()[None, None], kernel, padding=1)[0, 0]
        count = F.conv2d(known, kernel, padding=1)[0, 0]
        reached = missing & (count > 0)
        if not bool(reached.any()):
            break
        values = torch.where(reached, total / count.clamp(min=1), values)
    return values
