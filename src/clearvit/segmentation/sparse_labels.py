"""Strokes label little of an example: a first fit labels what it is sure of, then fits again.

Only classes that have strokes in an image are given to its other pixels, so an image with strokes
of one class stays as it is. See docs/results/segment_strokes.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from clearvit.probes.features import Features
from clearvit.probes.patches import resize_nearest
from clearvit.segmentation.annotations.labelled import Integers
from clearvit.segmentation.patch_classifiers import PatchClassifier, fit_classifier
from clearvit.segmentation.patch_sets import MaskReader, PatchSet, collect

SPARSE = 0.2  # fraction of the pixels that is labelled; below it labels count as strokes
MARGIN = 0.3  # by which the best class must be more probable than the next


def is_sparse(mask: Integers) -> bool:
    """Tell whether few pixels of a mask (height, width) are labelled, as by strokes."""
    return float((mask >= 0).mean()) < SPARSE


def collect_filled(
    features: Features, items: Sequence[tuple[int, MaskReader]], classes: int
) -> PatchSet:
    """Read labelled patches as `collect` does, and those that a fit to them is sure of."""
    classify = fit_classifier("mixed", collect(features, items, classes))
    filled = [(index, _filled(features, read, classify)) for index, read in items]
    return collect(features, filled, classes)


def _filled(features: Features, read: MaskReader, classify: PatchClassifier) -> MaskReader:
    def read_filled(index: int) -> Integers:
        mask = read(index)
        here = np.unique(mask[mask >= 0])
        if not is_sparse(mask) or len(here) < 2:
            return mask
        found = classify(features.patches([index])[0])[:, here]
        best = (found / found.sum(1, keepdim=True).clamp(min=1e-9)).topk(2, dim=1).values
        places = torch.from_numpy(here)[found.argmax(1)]
        guess = torch.where(best[:, 0] - best[:, 1] >= MARGIN, places, -1).view(features.grid)
        wide = resize_nearest(guess.numpy(), (mask.shape[0], mask.shape[1])).astype(np.int64)
        labels: Integers = np.where(mask >= 0, mask, wide)
        return labels

    return read_filled
