"""Choose features for discovery without labels: those that depend least on the position.

Different images share nothing but the positions of their patches. If the affinity matrices of
different images resemble each other, they come from position embeddings and not from objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.discovery.config import DiscoverConfig, Feature
from clearvit.discovery.consensus_cut import mean_affinity
from clearvit.discovery.discovery_features import FEATURES, make_plan, read_batches, read_features
from clearvit.errors import ImageError
from clearvit.images import ImageSource, find_images, spread_evenly
from clearvit.images.find import ImageInput
from clearvit.options import Size


@dataclass(frozen=True)
class FeatureChoice:
    """The chosen features, and the numbers behind the choice."""

    features: tuple[Feature, ...]  # for `discover(features=...)`, the least positional first
    correlations: dict[Feature, float]  # of affinities between different images, -1..1, by feature


class MeanCorrelation:
    """Mean correlation between matrices of different images, from one running sum."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.count = 0

    def add(self, affinity: Tensor) -> None:
        """Add the matrix (N, N) of one image."""
        centered = (affinity - affinity.mean()).flatten().cpu()
        self.total = self.total + F.normalize(centered, dim=0)
        self.count += 1

    def mean(self) -> float:
        """Average over all pairs of different images."""
        squared = float(self.total.square().sum())
        return (squared - self.count) / (self.count**2 - self.count)


def choose_features(
    backbone: Backbone,
    images: Tensor | ImageInput,
    *,
    layers: tuple[int, ...] | None = None,
    limit: int = 16,
    size: int | Size | None = None,
    batch: int = 4,
) -> FeatureChoice:
    """Choose among tokens, queries, keys and values for `discover`, without labels.

    The correlation of the affinities of different images is measured for each feature; those
    nearer to the lowest correlation than to the highest are chosen.

    Args:
        backbone: A ViT; a grid-only backbone has only its final tokens.
        images: Several images of different things.
        layers: Blocks to read, as for `discover`.
        limit: Maximum number of images, taken evenly from all.
        size: Pixels to resize to, one number or (height, width); the backbone's own if None.
        batch: Images per forward pass.
    """
    used: Tensor | list[ImageSource] = (
        images[:limit] if isinstance(images, Tensor) else spread_evenly(find_images(images), limit)
    )
    if len(used) < 2:
        raise ImageError("choosing features compares images; give two or more of different things.")
    if not backbone.depth:
        return FeatureChoice(("token",), {})
    config = DiscoverConfig(features=FEATURES, layers=layers, size=size, batch=batch)
    found = _correlate(backbone, used, config)
    middle = (min(found.values()) + max(found.values())) / 2
    kept = sorted((name for name in FEATURES if found[name] <= middle), key=found.__getitem__)
    return FeatureChoice(tuple(kept), found)


def _correlate(
    backbone: Backbone, images: Tensor | Sequence[ImageSource], config: DiscoverConfig
) -> dict[Feature, float]:
    """Correlation of the affinities of different images, by feature."""
    plan = make_plan(backbone, config)
    seen = {name: MeanCorrelation() for name in FEATURES}
    with torch.no_grad():
        for part in read_batches(backbone, images, config, skipped=[]):
            features, _, _ = read_features(backbone, plan, part.pixels)
            for i in range(len(part.names)):
                for index, name in enumerate(FEATURES):  # features alternate, block by block
                    own = [feature[i] for feature in features[index :: len(FEATURES)]]
                    seen[name].add(mean_affinity(own))
    if seen["token"].count < 2:
        raise ImageError("fewer than two images can be read; choosing features compares images.")
    return {name: one.mean() for name, one in seen.items()}
