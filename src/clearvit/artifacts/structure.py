"""How the patches of an image relate to each other: smooth within a part, different between parts.

The argument of "Beyond the CLS Token" (Zhang, Liwicki, Cipolla, BMVC 2022) about which backbones
gain from patch-level re-ranking, in numbers. Works for every grid of features.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.artifacts.neighbors import auroc, neighbor_similarity
from clearvit.report.pca import foreground

PAIRS = 20_000  # pairs of patches per image whose cosine is compared, at most
SEED = 0  # of the pairs and of the split of channels


@dataclass(frozen=True)
class Structure:
    """The structure of the final patch tokens, means over images.

    Attributes:
        smoothness: Cosine to the four neighbors, -1..1.
        separation: AUROC with which the cosine tells pairs within foreground or background from
            pairs across, 0.5..1. The two parts come from one half of the channels, the cosine from
            the other half, so that nothing is measured on what it was found with.
        label_separation: The same with the classes of masks instead; None without masks.
        corners: Cosine of the same corner in different images minus that of other positions:
            above 0, corners hold what belongs to the position.
        background: 1 - cosine of background patches to their mean: how much plain parts vary.
    """

    smoothness: float
    separation: float
    label_separation: float | None
    corners: float | None
    background: float

    def __str__(self) -> str:
        """Say the numbers in one sentence."""
        corners = ""
        if self.corners is not None:
            corners = f" Corners share {self.corners:+.2f} of cosine beyond other positions."
        return (
            f"a patch has cosine {self.smoothness:.2f} to its neighbors, cosines tell foreground"
            f" from background with an AUROC of {self.separation:.2f}, and background patches vary"
            f" by {self.background:.2f}.{corners}"
        )

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON holds them."""
        return asdict(self)


def measure_structure(maps: Tensor, labels: Sequence[Tensor | None] = ()) -> Structure:
    """Measure the structure of feature maps.

    Args:
        maps: Final patch tokens of I images, (I, C, H, W).
        labels: Class of every cell for some images, (H, W) long with -1 for unknown.
    """
    maps = maps.float()
    found = [_measure_image(image) for image in maps]
    labelled = [
        _separation(F.normalize(image.flatten(1).T, dim=1), label.flatten())
        for image, label in zip(maps, labels, strict=False)
        if label is not None
    ]
    known = [value for value in labelled if value == value]
    return Structure(
        smoothness=float(neighbor_similarity(maps).mean()),
        separation=statistics.fmean([separation for separation, _ in found]),
        label_separation=statistics.fmean(known) if known else None,
        corners=measure_corners(maps) if len(maps) > 1 else None,
        background=statistics.fmean([variation for _, variation in found]),
    )


def measure_corners(maps: Tensor) -> float:
    """Compare what images share at corners with what they share elsewhere, (I, C, H, W).

    Returns:
        Mean cosine between images at the four corners minus that at all other positions.
    """
    unit = F.normalize(maps.flatten(2), dim=1)  # (I, C, N)
    total = unit.sum(0)
    images, height, width = len(maps), maps.shape[2], maps.shape[3]
    # mean over pairs of different images: (|sum|^2 - I) / (I (I - 1))
    shared = ((total * total).sum(0) - images) / (images * (images - 1))
    corner = torch.zeros(height, width, dtype=torch.bool)
    corner[:: max(height - 1, 1), :: max(width - 1, 1)] = True
    corner = corner.flatten()
    if corner.all():
        return 0.0
    return float(shared[corner].mean() - shared[~corner].mean())


def _measure_image(image: Tensor) -> tuple[float, float]:
    """Give separation and variation of the background of one map (C, H, W)."""
    generator = torch.Generator().manual_seed(SEED)
    halves = torch.randperm(len(image), generator=generator).chunk(2)
    values = []
    for found_with, judged_with in (halves, halves[::-1]):
        object_of_half = foreground(image[found_with]).flatten().long()
        judged = F.normalize(image[judged_with].flatten(1).T, dim=1)
        values.append(_separation(judged, object_of_half))
    known = [value for value in values if value == value]  # not NaN
    around = ~foreground(image).flatten()
    plain = F.normalize(image.flatten(1).T, dim=1)[around if around.any() else slice(None)]
    variation = 1 - float((plain @ F.normalize(plain.mean(0), dim=0)).mean())
    return (statistics.fmean(known) if known else 0.5), variation


def _separation(unit: Tensor, label: Tensor) -> float:
    """AUROC of the cosine for "same label", over pairs of the N patches; NaN with one label."""
    known = (label >= 0).nonzero().flatten()
    if len(known) < 2:
        return float("nan")
    generator = torch.Generator().manual_seed(SEED)
    one, other = known[torch.randint(len(known), (2, PAIRS), generator=generator)]
    one, other = one[one != other], other[one != other]
    cosine = (unit[one] * unit[other]).sum(1)
    return auroc(cosine, label[one] == label[other])
