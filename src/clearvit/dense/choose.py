"""Which features suit discovery? Those that depend least on the place in the picture; no labels.

Different photos share nothing but the places of their patches. If the affinities of one photo
resemble those of another, they come from position embeddings and not from objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.dense.consensus import mean_affinity
from clearvit.dense.discover import FEATURES, loaded, planned, read_features
from clearvit.errors import ImageError
from clearvit.images import find_images
from clearvit.images.find import Source


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why."""

    features: tuple[str, ...]  # for `discover(features=...)`, the least bound to places first
    shares: dict[str, float]  # how alike the affinities of different photos are, -1..1, by feature


class Likeness:
    """Mean correlation between matrices of different images, from one running sum."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.count = 0

    def add(self, affinity: Tensor) -> None:
        """Take one more matrix (N, N)."""
        centred = (affinity - affinity.mean()).flatten().cpu()
        self.total = self.total + F.normalize(centred, dim=0)
        self.count += 1

    def mean(self) -> float:
        """Average over all pairs of different images."""
        squared = float(self.total.square().sum())
        return (squared - self.count) / (self.count**2 - self.count)


def choose_features(
    backbone: Backbone,
    images: Source,
    *,
    layer: int | Sequence[int] | None = None,
    limit: int = 16,
    size: int | Size | None = None,
    batch: int = 4,
) -> Choice:
    """Choose among tokens, queries, keys and values for `discover`, without labels.

    Those features are chosen whose likeness between different photos is nearer to the smallest
    than to the largest one.

    Args:
        backbone: A ViT; a grid-only backbone has nothing to choose from.
        images: Some photos of different things.
        layer: Blocks to read, as for `discover`.
        limit: Most photos, spread over all.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        batch: Images per forward pass.
    """
    pictures = find_images(images)
    pictures = pictures[:: max(1, len(pictures) // limit)][:limit]
    if len(pictures) < 2:
        raise ImageError("the choice compares photos; give at least two, of different things.")
    if not backbone.depth:
        return Choice(("token",), {})
    plan = planned(backbone, "ours", FEATURES, layer, 1)
    seen = {name: Likeness() for name in FEATURES}
    with torch.no_grad():
        for part in loaded(backbone, pictures, size, batch, skipped=[]):
            features, _, _ = read_features(backbone, plan, part.pixels)
            for i in range(len(part.names)):
                for place, name in enumerate(FEATURES):  # all features of a block, block by block
                    mine = [feature[i] for feature in features[place :: len(FEATURES)]]
                    seen[name].add(mean_affinity(mine))
    if seen["token"].count < 2:
        raise ImageError("fewer than two photos can be read; the choice compares photos.")
    shares = {name: likeness.mean() for name, likeness in seen.items()}
    middle = (min(shares.values()) + max(shares.values())) / 2
    kept = sorted((name for name in FEATURES if shares[name] <= middle), key=shares.__getitem__)
    return Choice(tuple(kept), shares)
