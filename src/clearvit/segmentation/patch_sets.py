"""Labelled patches of the examples: what classifiers of patches learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.probes.features import Features
from clearvit.probes.patches import patch_labels
from clearvit.probes.sgd import CELLS
from clearvit.segmentation.annotations.labelled import Integers

ROWS = 40_000  # labelled patches and labelled cells that are kept, at most, of all examples
SAMPLED = 20_000  # patches, labelled or not, whose mean is taken away


class MaskReader(Protocol):
    """Masks by index, (height, width): places of classes, below 0 where ignored."""

    def __call__(self, index: int) -> Integers:
        """Read one mask."""


@dataclass(frozen=True)
class Rows:
    """Labelled vectors."""

    tokens: Tensor  # (M, C)
    labels: Tensor  # (M, K) class fractions, which sum to the labelled fraction of each
    items: Tensor  # (M,) which example each belongs to

    def without(self, held_out: Sequence[int]) -> Rows:
        """Leave some examples out."""
        kept = ~torch.isin(self.items, torch.tensor(list(held_out)))
        return Rows(self.tokens[kept], self.labels[kept], self.items[kept])


@dataclass(frozen=True)
class PatchSet:
    """All that is learned from, read once."""

    patches: Rows  # of the grid
    cells: Rows  # of a grid CELLS times as fine, between whose centers tokens are interpolated
    sampled: Tensor  # (S, C) patches of the same images, labelled or not
    images: Tensor  # (E,) which image each example is of; one image may be two, by halves

    def without(self, held_out: Sequence[int]) -> PatchSet:
        """Leave the labels of some examples out."""
        patches, cells = self.patches.without(held_out), self.cells.without(held_out)
        return PatchSet(patches, cells, self.sampled, self.images)

    def examples_per_class(self) -> float:
        """Count the images that hold each class, and give the median over classes."""
        rows = self.patches
        found = [self.images[rows.items[part > 0]].unique() for part in rows.labels.T]
        return float(np.median([len(images) for images in found]))


def collect(
    features: Features, items: Sequence[tuple[int, MaskReader]], classes: int, *, seed: int = 0
) -> PatchSet:
    """Read the labelled patches of examples; every example gives an equal number at most.

    Args:
        features: Tokens of the images.
        items: Index of the image, and its mask, of each example; one image may be several.
        classes: Number of classes K.
        seed: Seed of the sample where there are too many.
    """
    generator = torch.Generator().manual_seed(seed)
    grid, quota = features.grid, max(1, ROWS // len(items))
    fine = (CELLS * grid[0], CELLS * grid[1])
    parts: tuple[list[Rows], list[Rows]] = ([], [])
    for number, (index, read) in enumerate(items):
        tokens, mask = features.map([index]), read(index)
        dense = F.interpolate(tokens, fine, mode="bilinear", align_corners=False)
        for rows, maps, cells in ((parts[0], tokens, grid), (parts[1], dense, fine)):
            fractions, valid = patch_labels(mask, cells, classes)
            kept = sample_rows(valid, quota, generator)
            labels = (fractions * valid[:, None])[kept]
            vectors = maps[0].flatten(1).T[kept]
            rows.append(Rows(vectors, labels, torch.full((len(kept),), number)))
    images = [index for index, _ in items]
    sampled = _sample(features, images)
    return PatchSet(join(parts[0]), join(parts[1]), sampled, torch.tensor(images))


def sample_rows(valid: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Choose rows with a labelled pixel, at most so many, ascending."""
    kept = valid.nonzero()[:, 0]
    if len(kept) > most:
        kept = kept[torch.randperm(len(kept), generator=generator)[:most]].sort().values
    return kept


def join(parts: Sequence[Rows]) -> Rows:
    """Put rows of several examples together."""
    return Rows(
        torch.cat([one.tokens for one in parts]),
        torch.cat([one.labels for one in parts]),
        torch.cat([one.items for one in parts]),
    )


def _sample(features: Features, indices: Sequence[int]) -> Tensor:
    """Take patches of the images evenly."""
    unique = list(dict.fromkeys(indices))
    step = max(1, len(unique) * features.grid[0] * features.grid[1] // SAMPLED)
    return torch.cat([features.patches([i])[0][:: max(1, step)] for i in unique])


def split_halves(mask: Integers) -> Integers:
    """Split the labelled pixels of each class in two along the longer side they span.

    Returns:
        0 or 1 for every pixel, (height, width).
    """
    half = np.zeros(mask.shape, dtype=np.int64)
    for place in np.unique(mask[mask >= 0]):
        where = np.nonzero(mask == place)
        axis = int(np.ptp(where[1]) > np.ptp(where[0]))
        middle = np.median(where[axis])
        half[where] = where[axis] > middle
    return half
