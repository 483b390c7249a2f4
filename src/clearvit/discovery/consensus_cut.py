"""Consensus: one normalized cut of the affinity averaged over many features; nothing to tune.

Each feature (tokens and values of the later blocks) gives a matrix of cosines. Their mean differs
from model to model and block to block, which LOST corrects by a bias set by hand. Here each matrix
is standardized, by its own mean and standard deviation, before all are averaged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.discovery.boxes import GridObject, check_grid, connected_component, enclosing_box
from clearvit.discovery.normalized_cut import NO_EDGE, contrast, second_eigenvector
from clearvit.errors import ModelError

MIN_AREA = 0.01  # of the grid; smaller further objects are dropped
MAX_BORDER = 0.3  # fraction of the border; a further object that covers more is background
MIN_PATCHES = 16  # fewer remaining patches are not cut again


def consensus(
    features: Sequence[Tensor],
    grid: Sequence[int],
    *,
    objects: int = 1,
    exclude: Tensor | None = None,
) -> list[GridObject]:
    """Find objects of one image, one after the other; at least one.

    The averaged affinity is cut in two. The object is the side that covers less of the image
    border, thresholded half-way between the extremes of the eigenvector; of it, the connected
    part around the maximum. Its patches are removed before the next object is searched; the
    search ends when a cut gives a tiny region or the background.

    Args:
        features: Features of the same N patches, row by row, without prefix tokens, (N, C) each.
        grid: (H, W) in patches.
        objects: Maximum number of objects.
        exclude: Artifact tokens, (N,) bool: left out of the cut; in the mask they follow their
            neighbors.
    """
    if not features or objects < 1:
        raise ModelError("discovery needs at least one feature and objects >= 1.")
    shape = check_grid(features[0], grid)
    trusted = torch.ones(len(features[0]), dtype=torch.bool)
    if exclude is not None and not bool(exclude.all()):
        trusted = ~exclude.cpu()
    affinity = mean_affinity(features, trusted)
    if float(affinity[trusted][:, trusted].std()) < 1e-6:
        warnings.warn("all patches have the same features; the box is meaningless.", stacklevel=2)
        whole = torch.ones(shape, dtype=torch.bool)
        return [GridObject(enclosing_box(whole), 0, whole, 0.0, degenerate=True)]
    return _cut_often(affinity, trusted, shape, objects)


def _cut_often(
    affinity: Tensor, trusted: Tensor, shape: tuple[int, int], objects: int
) -> list[GridObject]:
    """Cut what the objects found before have left, as long as that gives objects."""
    free = torch.ones(len(affinity), dtype=torch.bool)
    found: list[GridObject] = []
    while len(found) < objects:
        cut = _cut(affinity, free, trusted, shape)
        if found and not _is_object(cut, shape):
            break
        found.append(cut)
        free &= ~cut.mask.flatten()
        if int((free & trusted).sum()) < MIN_PATCHES:
            break
    return found


def _is_object(cut: GridObject, shape: tuple[int, int]) -> bool:
    """Tell whether a further cut is an object, neither tiny nor background."""
    everywhere = torch.ones(cut.mask.numel(), dtype=torch.bool)
    border = _border_coverage(cut.mask.flatten(), everywhere, shape)
    large = float(cut.mask.float().mean()) >= MIN_AREA
    return large and border <= MAX_BORDER and cut.score > 0


def mean_affinity(features: Sequence[Tensor], trusted: Tensor | None = None) -> Tensor:
    """Average the standardized cosines of several features, F x (N, C) -> (N, N).

    Zero is the mean cosine between different patches. Mean and standard deviation are those of
    the `trusted` patches, (N,) bool.
    """
    total = torch.zeros((), device=features[0].device)
    for feature in features:
        unit = F.normalize(feature.detach().float(), dim=1)
        reference = unit if trusted is None else unit[trusted.to(unit.device)]
        count = len(reference)
        # Sums over all pairs follow from the sum and the second moment of the features.
        center = (reference.sum(0).square().sum() - count) / max(count * count - count, 1)
        mean = reference.sum(0).square().sum() / count**2
        square = (reference.T @ reference).square().sum() / count**2
        std = (square - 2 * center * mean + center**2).clamp(min=0).sqrt()
        total = total + (unit @ unit.T - center) / std.clamp(min=1e-6)
    return total / len(features)


def _cut(affinity: Tensor, free: Tensor, trusted: Tensor, shape: tuple[int, int]) -> GridObject:
    """Find one object among the free patches."""
    used = free & trusted if bool((free & trusted).any()) else free
    indices = used.nonzero()[:, 0].to(affinity.device)
    part = affinity[indices][:, indices]
    vector = second_eigenvector(part.clamp(min=NO_EDGE)).cpu()
    values = torch.full(free.shape, float("nan"))
    values[used] = vector
    values = _fill_missing(values.view(shape), free.view(shape)).flatten()
    if _border_coverage(values > vector.mean(), free, shape) > _border_coverage(
        values <= vector.mean(), free, shape
    ):
        values, vector = -values, -vector
    known = torch.where(used, values, float("-inf"))
    seed = int(known.argmax())
    mask = connected_component((values > (vector.max() + vector.min()) / 2).view(shape), seed)
    return GridObject(enclosing_box(mask), seed, mask, contrast(affinity, mask))


def _border_coverage(side: Tensor, free: Tensor, shape: tuple[int, int]) -> float:
    """Fraction of the free cells on the border of the grid that one side covers."""
    ring = torch.ones(shape, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    ring = ring.flatten() & free
    return float(side[ring].float().mean()) if bool(ring.any()) else 0.0


def _fill_missing(values: Tensor, free: Tensor) -> Tensor:
    """Give cells without a value the mean of their neighbors, outwards from those that have one.

    Cells (H, W) that are not free stay NaN, so that every comparison with them is False.
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
