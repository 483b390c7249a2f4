"""Faithfulness of explanations: matches under known warps, deletion of patches, mass on objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.object_images import ObjectImages, read_object_images
from clearvit.errors import ImageError
from clearvit.evaluation.config import FaithfulnessConfig
from clearvit.evaluation.evaluation_table import Floats, Result
from clearvit.evaluation.retrieval_task import Comparison, extract_compared, list_comparisons
from clearvit.evaluation.task_data import Prepared
from clearvit.images import read_image
from clearvit.probes.correspondence import map_points, patch_centers, sample_warp, warp_images
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.progress import Progress
from clearvit.retrieval.collected_features import CollectedFeatures
from clearvit.retrieval.config import ResolvedWeights
from clearvit.retrieval.explanations.explanation import explain_pair
from clearvit.retrieval.explanations.faithfulness import (
    fraction_on_object,
    hide_patches,
    hiding_orders,
    warp_accuracy,
)
from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures, extract_each
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match

ORDERS = ("strongest", "weakest", "random")


@dataclass(frozen=True)
class Study:
    """What all images share."""

    backbone: Backbone
    features: CollectedFeatures
    images: ObjectImages
    config: FaithfulnessConfig

    @property
    def spec(self) -> FeatureSpec:
        """Size, grid and descriptor."""
        return self.features.spec

    def extract(
        self, pixels: Tensor, kinds: Sequence[ResolvedWeights]
    ) -> dict[ResolvedWeights, ImageFeatures]:
        """Extract features of images (B, 3, height, width) with some patch weights."""
        moved = pixels.to(self.backbone.device, self.backbone.dtype)
        unique = list(dict.fromkeys(kinds))
        found = extract_each(self.backbone, moved, self.spec, unique)
        return dict(zip(unique, found, strict=True))

    def local(self, index: int, comparison: Comparison) -> LocalFeatures:
        """Give the patches of one image."""
        return self.features.local_features(comparison.patch_weights)[index : index + 1]

    def contributions(
        self, query: LocalFeatures, hit: LocalFeatures, comparison: Comparison
    ) -> Tensor:
        """Split the patch similarity of two images into pairs of patches, (R, R)."""
        matching, grid = comparison.matching, self.spec.grid
        found = explain_pair(query, hit, grid, matching=matching, global_similarity=0.0, weight=1.0)
        return found.contributions


@dataclass(frozen=True)
class Pair:
    """An image and the most similar one that shares a class with it."""

    query: int
    partner: int
    pixels: Tensor  # of the query, (3, height, width)
    randomly_hidden: dict[ResolvedWeights, ImageFeatures] = field(default_factory=dict)


def prepare(data: Path, config: FaithfulnessConfig) -> Prepared:
    """Read the images and their objects."""
    images = read_object_images(data, layout=config.layout, split=config.split)
    if len(images) < 2:
        raise ImageError("an explanation compares two images; there is only one.")
    facts = {"kind": images.kind, "images": len(images)}
    return Prepared(partial(_run, images=images, config=config), facts)


def _run(
    backbone: Backbone,
    progress: Progress | None,
    *,
    images: ObjectImages,
    config: FaithfulnessConfig,
) -> list[Result]:
    whole = use_whole_image(backbone)
    comparisons = list(list_comparisons(whole, config))
    features = extract_compared(whole, images.sources, comparisons, config, progress)
    study = Study(whole, features, images, config)
    chosen = select_evenly(len(images), config.limit)
    rows = []
    for done, query in enumerate(chosen, 1):
        rows.append(_measure(study, query, comparisons))
        if progress:
            progress("explanations", done, len(chosen))
    summary = partial(_summarize, alphas=config.alphas)
    columns = zip(*rows, strict=True)
    return [
        Result(one.name, 0, [np.stack(found)], summary)
        for one, found in zip(comparisons, columns, strict=True)
    ]


def find_partner(classes: Sequence[frozenset[int]], query: int, similarity: Tensor) -> int | None:
    """Find the most similar image (N,) that shares a class with the query, if there is one."""
    for other in similarity.argsort(descending=True).tolist():
        if other != query and classes[query] & classes[other]:
            return int(other)
    return None


def _measure(study: Study, query: int, comparisons: Sequence[Comparison]) -> list[Floats]:
    """Give the rows of one image, one per comparison."""
    image = read_image(study.images.sources[query].source)
    pixels = study.backbone.preprocessing(image, study.spec.size)
    warp = sample_warp(study.config.seed * 1_000_003 + query)
    copies = study.extract(
        warp_images(pixels[None], warp), [one.patch_weights for one in comparisons]
    )
    similarity = study.features.descriptors @ study.features.descriptors[query]
    partner = find_partner(study.images.classes, query, similarity)
    pair = None if partner is None else Pair(query, partner, pixels)
    grid, centers = study.spec.grid, patch_centers(study.spec.grid)
    rows = []
    for one in comparisons:
        copy = copies[one.patch_weights].local_features(study.spec)
        found = study.contributions(study.local(query, one), copy, one)
        positions = map_points(centers, warp)
        matched = warp_accuracy(found, positions, centers, grid, study.config.alphas)
        deletion, objects = np.zeros(5), np.zeros(3)
        if pair is not None:
            hit = study.local(pair.partner, one)
            found = study.contributions(study.local(query, one), hit, one)
            deletion = _measure_deletion(study, pair, one, found)
            objects = _measure_objects(study, pair, found)
        rows.append(np.concatenate([_with_count(matched.numpy()), deletion, objects]))
    return rows


def _measure_deletion(
    study: Study, pair: Pair, comparison: Comparison, contributions: Tensor
) -> Floats:
    """Measure how much more the score falls if the strongest patches are hidden, (5,).

    Patch similarity against hiding random patches and against hiding the weakest, then the cosine
    of the descriptors likewise, all as means over the hidden fractions in points of 0.01; and 1.
    """
    kind = comparison.patch_weights
    orders = hiding_orders(contributions, seed=study.config.seed * 1_000_003 + pair.query)
    hit = study.local(pair.partner, comparison)
    patch_scores, cosines = {}, {}
    for name in ORDERS:
        seen = pair.randomly_hidden.get(kind) if name == "random" else None
        if seen is None:
            seen = _hide(study, pair.pixels, orders[name], kind)
        if name == "random":
            pair.randomly_hidden[kind] = seen
        local = seen.local_features(study.spec)
        patch_scores[name] = match(hit, local, comparison.matching).score.mean()
        cosines[name] = (seen.descriptors @ study.features.descriptors[pair.partner]).mean()
    gaps = [
        100 * float(values[other] - values["strongest"])
        for values in (patch_scores, cosines)
        for other in ("random", "weakest")
    ]
    return np.array([*gaps, 1.0])


def _hide(study: Study, pixels: Tensor, order: Tensor, kind: ResolvedWeights) -> ImageFeatures:
    """Extract copies of an image in which growing fractions of its patches are hidden."""
    fractions, grid = study.config.hidden_fractions, study.spec.grid
    copies = torch.stack([hide_patches(pixels, order, one, grid) for one in fractions])
    return study.extract(copies, [kind])[kind]


def _measure_objects(study: Study, pair: Pair, contributions: Tensor) -> Floats:
    """Give the percentage of contributions on objects of shared classes, their area, and 1."""
    images = study.images
    if images.object_mask is None:
        return np.zeros(3)
    shared = images.classes[pair.query] & images.classes[pair.partner]
    mask = images.object_mask(pair.query, shared)
    if not bool(mask.any()):
        return np.zeros(3)
    fraction, area = fraction_on_object(contributions, mask, study.spec.grid)
    return np.array([100 * fraction, 100 * area, 1.0])


def _with_count(values: Floats) -> Floats:
    """Give percentages and 1, or zeros where nothing could be measured."""
    known = not np.isnan(values).any()
    return np.concatenate([100 * values if known else np.zeros_like(values), [float(known)]])


def _summarize(sums: Floats, alphas: Sequence[float]) -> Mapping[str, Floats]:
    names = ["correct cell", "mass in correct cell", *(f"PCK@{alpha:g}" for alpha in alphas)]
    found = _means(sums[..., : len(names) + 1], names)
    rest = sums[..., len(names) + 1 :]
    drops = ("patches, random", "patches, weakest", "cosine, random", "cosine, weakest")
    found |= _means(rest[..., :5], [f"drop {name}" for name in drops])
    return found | _means(rest[..., 5:], ["on object", "object area"])


def _means(sums: Floats, names: Sequence[str]) -> dict[str, Floats]:
    """Divide columns by the count in the last one; NaN where nothing was counted."""
    count = sums[..., -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(count > 0, sums[..., i] / count, np.nan) for i, name in enumerate(names)
        }
