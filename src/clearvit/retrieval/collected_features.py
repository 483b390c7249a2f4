"""Features of a fixed list of images, under several patch weights, computed once.

An index serves searches; this serves measurements, which compare patch weights on the same images
and rank them by the same steps as an index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.files import written_whole
from clearvit.images import ImageSource, batches
from clearvit.progress import Meter, Progress
from clearvit.retrieval.config import Matching, ResolvedWeights, SearchConfig
from clearvit.retrieval.gate import GateDecision, gate_reranking
from clearvit.retrieval.image_features import FeatureSpec, check_finite, extract_each
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.reranking import RerankResult, find_nearest, rerank_nearest

PIECE = 512  # images per file of a cache; what a killed run loses at most


@dataclass(frozen=True)
class CollectedFeatures:
    """Features of N images; patches are kept in half precision, as in an index."""

    spec: FeatureSpec
    descriptors: Tensor  # (N, D), unit norm
    patches: dict[ResolvedWeights, Tensor]  # by patch weights, (N, R, C) float16, unit norm
    weights: dict[ResolvedWeights, Tensor]  # by patch weights, (N, R), sum 1

    def __len__(self) -> int:
        return len(self.descriptors)

    def local_features(self, patch_weights: ResolvedWeights) -> LocalFeatures:
        """Give the patches of all images as matching takes them; pick some by indexing."""
        descriptors = self.descriptors if self.spec.same_space else None
        return LocalFeatures(self.patches[patch_weights], self.weights[patch_weights], descriptors)


def search_features(
    features: CollectedFeatures,
    queries: Tensor,
    gallery: int,
    patch_weights: ResolvedWeights,
    config: SearchConfig,
) -> RerankResult:
    """Search collected features by the same steps as `Index.search`: nearest, gate, re-ranking.

    To rank by several weights, search once with a weight above 0 and call `.reweight(weight)` of
    the result, also with what `gate_features` decides; patches are not compared again.

    Args:
        features: Features of all images, those of the gallery first.
        queries: Rows of the queries, (Q,). A query in the gallery is left out of its own list.
        gallery: How many images the gallery holds, G.
        patch_weights: Which of the collected weights matching uses.
        config: Length of the lists `k`, depth of re-ranking `rerank`, its weight (None asks the
            gate) and how patches are compared; `where` and `exact` have no meaning here.

    Returns:
        Lists of rows of the gallery, (Q, M); M is the larger of k and rerank (None is 0), at
        most the number of items that every query can find.
    """
    weight: float | GateDecision = (config.weight or 0.0) if config.rerank else 0.0
    if config.rerank and config.weight is None:
        weight = gate_features(features, gallery, patch_weights, config.matching)
    own = torch.where(queries < gallery, queries, -1)
    nearest = find_nearest(
        features.descriptors[queries],
        features.descriptors[:gallery],
        min(max(config.k, config.rerank or 0), gallery - int(bool((own >= 0).any()))),
        exclude=own,
    )
    images = features.local_features(patch_weights)
    return rerank_nearest(
        nearest,
        images[queries],
        images,
        matching=config.matching,
        weight=weight,
        top=config.rerank or 0,
    )


def gate_features(
    features: CollectedFeatures, gallery: int, patch_weights: ResolvedWeights, matching: Matching
) -> GateDecision:
    """Ask the gate whether re-ranking helps; it sees the first `gallery` images and no label."""
    images = features.local_features(patch_weights)
    return gate_reranking(features.descriptors[:gallery], images, matching)


def collect_features(
    backbone: Backbone,
    images: Sequence[ImageSource],
    spec: FeatureSpec,
    patch_weights: Sequence[ResolvedWeights],
    *,
    batch: int = 8,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> CollectedFeatures:
    """Extract features, or read them from a cache; an image that cannot be read is an error.

    Args:
        backbone: Makes the tokens.
        images: What to read.
        spec: Size, grid and descriptor; its patch weights are not used.
        patch_weights: Which weights to compute.
        batch: Images per forward pass.
        cache: Folder that keeps the features for the next run, which also finishes a killed one.
        progress: Called with the stage, the images done and all images.
    """
    kinds = tuple(dict.fromkeys(patch_weights))
    folder = None if cache is None else Path(cache) / _key(images, spec, kinds)
    meter = Meter(progress, len(images))
    parts: list[dict[str, Tensor]] = []
    for start in range(0, len(images), PIECE):
        file = None if folder is None else folder / f"{start:08d}.safetensors"
        if file is not None and file.exists():
            parts.append(load_file(file))
            meter.advance(len(parts[-1]["descriptors"]))
            continue
        piece = images[start : start + PIECE]
        parts.append(_concatenate([*_extract(backbone, piece, spec, kinds, batch, meter)]))
        if file is not None:
            with written_whole(file) as temporary:
                save_file(parts[-1], temporary)
    whole = _concatenate(parts)
    # Only weights that leave artifacts out pool other patches.
    patches = {kind: whole[f"patches.{_patches_of(kind)}"] for kind in kinds}
    weights = {kind: whole[f"weights.{kind}"] for kind in kinds}
    return CollectedFeatures(spec, whole["descriptors"], patches, weights)


def _extract(
    backbone: Backbone,
    images: Sequence[ImageSource],
    spec: FeatureSpec,
    kinds: Sequence[ResolvedWeights],
    batch: int,
    meter: Meter,
) -> Iterator[dict[str, Tensor]]:
    source = batches(
        images,
        lambda image: backbone.preprocessing(image, spec.size),
        size=batch,
        threads=1 if backbone.device.type == "cpu" else 4,
        strict=True,
    )
    with closing(source):
        for read in source:
            pixels = torch.stack(list(read.items)).to(backbone.device, backbone.dtype)
            tensors: dict[str, Tensor] = {}
            found = extract_each(backbone, pixels, spec, kinds)
            for kind, one in zip(kinds, found, strict=True):
                check_finite(one, read.names)
                tensors["descriptors"] = one.descriptors
                tensors[f"patches.{_patches_of(kind)}"] = one.patches.half()
                tensors[f"weights.{kind}"] = one.weights
            meter.advance(len(read.names))
            yield tensors


def _patches_of(kind: ResolvedWeights) -> str:
    return "clean" if kind == "without-artifacts" else "all"


def _concatenate(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([part[key] for part in parts]).contiguous() for key in parts[0]}


def _key(images: Sequence[ImageSource], spec: FeatureSpec, kinds: Sequence[ResolvedWeights]) -> str:
    """Name a folder after all that decides the features."""
    listed = [(image.name, str(image.source)) for image in images]
    features = (spec.fingerprint, spec.size, spec.grid, spec.descriptor, spec.facet, spec.whitening)
    settings = (*features, kinds, listed)
    return f"retrieval-{hashlib.sha256(repr(settings).encode()).hexdigest()[:16]}"
