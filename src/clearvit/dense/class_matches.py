"""Do patches find their own kind in another photo? Nearest patches across photos of a class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearvit.dense.correspondence import matches
from clearvit.dense.features import Features
from clearvit.dense.patches import patch_labels
from clearvit.dense.splits import MaskSplit
from clearvit.errors import ImageError

Floats = NDArray[np.float64]
Pair = tuple[int, int, int]  # place of the photo, place of its partner, class that both show
PURE = 0.5  # a patch is of the class that more than this share of its pixels has
NOTHING = -1


def patch_classes(
    mask: NDArray[np.int64], grid: tuple[int, int], classes: int
) -> NDArray[np.int64]:
    """Give each patch the class that most of it has, (N,); -1 where none has more than half."""
    shares, valid = patch_labels(mask, grid, classes)
    known = (shares * valid[:, None]).max(1)
    found: NDArray[np.int64] = known.indices.where(known.values > PURE, NOTHING).numpy()
    return found


def drawn_pairs(shown: Sequence[set[int]], seed: int) -> list[Pair]:
    """Draw for each photo a class that another photo shows too, and one such photo.

    Args:
        shown: The classes of each photo.
        seed: Of the draw.
    """
    chance = np.random.default_rng(seed)
    owners: dict[int, list[int]] = {}
    for place, classes in enumerate(shown):
        for kind in classes:
            owners.setdefault(kind, []).append(place)
    pairs = []
    for place, classes in enumerate(shown):
        shared = sorted(kind for kind in classes if len(owners[kind]) > 1)
        if shared:
            kind = shared[int(chance.integers(len(shared)))]
            others = [other for other in owners[kind] if other != place]
            pairs.append((place, others[int(chance.integers(len(others)))], kind))
    return pairs


def matched_share(
    source: Tensor, kinds: NDArray[np.int64], target: Tensor, other: NDArray[np.int64], kind: int
) -> Floats:
    """Match the patches of one class to the nearest patches of another photo.

    Args:
        source: Patch tokens of the photo, (N, C).
        kinds: Their classes, (N,).
        target: Patch tokens of the other photo, (M, C).
        other: Their classes, (M,).
        kind: The class that both show.

    Returns:
        Percent of matches that land in the class, percent that would by chance, and 1, (3,).
    """
    found = other[matches(source[kinds == kind], target).numpy()]
    return np.array([100 * np.mean(found == kind), 100 * np.mean(other == kind), 1.0])


def measure_pairs(features: Features, split: MaskSplit, *, seed: int = 0) -> Floats:
    """Match every photo with a partner, rows of `matched_share`, (V, 3); background is no class."""
    first = int(split.classes[0] == "background")
    grid, count = features.grid, len(split.classes)
    kinds = [patch_classes(split.read(i), grid, count) for i in range(len(split))]
    shown = [{int(kind) for kind in np.unique(some) if kind >= first} for some in kinds]
    pairs = drawn_pairs(shown, seed)
    if not pairs:
        raise ImageError(
            f"no two images of split '{split.name}' in '{split.root}' show the same class; more"
            " images are needed."
        )
    rows = np.zeros((len(split), 3))
    for place, partner, kind in pairs:
        source, target = (features.patches([i])[0] for i in (place, partner))
        rows[place] = matched_share(source, kinds[place], target, kinds[partner], kind)
    return rows
