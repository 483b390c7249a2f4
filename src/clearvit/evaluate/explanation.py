"""Explanations in numbers: matches under known warps, hidden patches, and mass on the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.dense.correspondence import centres, drawn_warp, true_places, warped
from clearvit.dense.features import spread, whole_picture
from clearvit.errors import ImageError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.explanation_photos import Photos
from clearvit.evaluate.retrieval import settled_weights
from clearvit.evaluate.retrieval_config import comparison_name
from clearvit.evaluate.table import Result
from clearvit.images import read_image
from clearvit.progress import Progress
from clearvit.retrieval.describe import (
    Described,
    Recipe,
    Settled,
    describe_each,
    make_recipe,
)
from clearvit.retrieval.explanation import explain_pair
from clearvit.retrieval.faithfulness import hidden, hiding_orders, on_object, warp_accuracy
from clearvit.retrieval.features import Features, collect_features
from clearvit.retrieval.matching import Locals, Matching, match

Floats = NDArray[np.float64]
ORDERS = ("strongest", "weakest", "chance")


@dataclass(frozen=True)
class Comparison:
    """One way to compare, and the weights that it reads."""

    matching: Matching
    marginal: Settled
    name: str


@dataclass(frozen=True)
class Study:
    """What all photos share."""

    backbone: Backbone
    recipe: Recipe
    features: Features
    photos: Photos
    config: EvaluateConfig

    def described(self, pixels: Tensor, marginals: Sequence[Settled]) -> dict[Settled, Described]:
        """Describe pictures (B, 3, height, width) under some marginals."""
        moved = pixels.to(self.backbone.device, self.backbone.dtype)
        unique = list(dict.fromkeys(marginals))
        found = describe_each(self.backbone, moved, self.recipe, unique)
        return dict(zip(unique, found, strict=True))

    def contributions(self, query: Locals, hit: Locals, matching: Matching) -> Tensor:
        """Take the structural similarity of two images apart, (R, R)."""
        found = explain_pair(
            query, hit, self.recipe.grid, matching=matching, global_similarity=0.0, weight=1.0
        )
        return found.contributions


def explain_numbers(
    backbone: Backbone, photos: Photos, config: EvaluateConfig, *, progress: Progress | None = None
) -> list[Result]:
    """Measure explanations of photos, one result per way to compare."""
    if len(photos) < 2:
        raise ImageError("an explanation compares two photos; there is only one.")
    shown = whole_picture(backbone)
    options = config.retrieval
    recipe = make_recipe(shown, size=config.size, grid=options.grid, descriptor=options.descriptor)
    comparisons = [
        Comparison(matching, settled, comparison_name(matching, settled if w == "auto" else w))
        for matching, w in options.comparisons()
        for settled in [settled_weights(shown, w)]
    ]
    marginals = [one.marginal for one in comparisons]
    features = collect_features(
        shown, photos.pictures, recipe, marginals, batch=config.batch, cache=config.cache
    )
    study = Study(shown, recipe, features, photos, config)
    rows: list[list[Floats]] = [[] for _ in comparisons]
    chosen = spread(len(photos), config.limit)
    for done, query in enumerate(chosen, 1):
        for place, row in enumerate(_measured(study, query, comparisons)):
            rows[place].append(row)
        if progress:
            progress(done, len(chosen))
    summary = partial(_summary, alphas=config.alphas)
    return [
        Result(one.name, 0, [np.stack(found)], summary)
        for one, found in zip(comparisons, rows, strict=True)
    ]


def _measured(study: Study, query: int, comparisons: Sequence[Comparison]) -> list[Floats]:
    """Rows of one photo, one per comparison."""
    image = read_image(study.photos.pictures[query].source)
    pixels = study.backbone.preprocessing(image, study.recipe.size)
    warp = drawn_warp(study.config.seed * 1_000_003 + query)
    copies = study.described(warped(pixels[None], warp), [one.marginal for one in comparisons])
    similarity = study.features.descriptors @ study.features.descriptors[query]
    partner = study.photos.partner(query, similarity)
    chance: dict[Settled, Described] = {}
    rows = []
    for one in comparisons:
        ours = study.features.locals(one.marginal, slice(query, query + 1))
        copy = copies[one.marginal].locals(study.recipe)
        grid = study.recipe.grid
        places = true_places(centres(grid), warp)
        found = study.contributions(ours, copy, one.matching)
        matched = warp_accuracy(found, places, centres(grid), grid, study.config.alphas)
        deletion, objects = np.zeros(5), np.zeros(3)
        if partner is not None:
            hit = study.features.locals(one.marginal, slice(partner, partner + 1))
            found = study.contributions(ours, hit, one.matching)
            deletion = _deletion(study, pixels, query, partner, one, found, chance)
            objects = _objects(study, query, partner, found)
        rows.append(np.concatenate([_counted(matched.numpy()), deletion, objects]))
    return rows


def _deletion(
    study: Study,
    pixels: Tensor,
    query: int,
    partner: int,
    one: Comparison,
    contributions: Tensor,
    chance: dict[Settled, Described],
) -> Floats:
    """How much more the score falls if the strongest patches are hidden, (5,).

    Structural similarity against hiding by chance and against hiding the weakest, then the cosine
    of the descriptors likewise, all as means over the shares hidden in points of 0.01; and 1.
    """
    grid, shares = study.recipe.grid, study.config.retrieval.masked
    orders = hiding_orders(contributions, seed=study.config.seed * 1_000_003 + query)
    hit = study.features.locals(one.marginal, slice(partner, partner + 1))
    structural, near = {}, {}
    for name in ORDERS:
        if name == "chance" and one.marginal in chance:
            seen = chance[one.marginal]
        else:
            copies = torch.stack([hidden(pixels, orders[name], s, grid) for s in shares])
            seen = study.described(copies, [one.marginal])[one.marginal]
        if name == "chance":
            chance[one.marginal] = seen
        structural[name] = match(hit, seen.locals(study.recipe), one.matching).score.mean()
        near[name] = (seen.descriptors @ study.features.descriptors[partner]).mean()
    gaps = [
        100 * float(values[other] - values["strongest"])
        for values in (structural, near)
        for other in ("chance", "weakest")
    ]
    return np.array([*gaps, 1.0])


def _objects(study: Study, query: int, partner: int, contributions: Tensor) -> Floats:
    """Share of the contributions on objects of the classes that both show, their area, and 1."""
    photos = study.photos
    if photos.masker is None:
        return np.zeros(3)
    mask = photos.masker(query, photos.classes[query] & photos.classes[partner])
    if not bool(mask.any()):
        return np.zeros(3)
    share, area = on_object(contributions, mask, study.recipe.grid)
    return np.array([100 * share, 100 * area, 1.0])


def _counted(values: Floats) -> Floats:
    """Percentages and 1, or zeros where nothing could be judged."""
    judged = not np.isnan(values).any()
    return np.concatenate([100 * values if judged else np.zeros_like(values), [float(judged)]])


def _summary(sums: Floats, alphas: Sequence[float]) -> Mapping[str, Floats]:
    names = ["right cell", "mass in right cell", *(f"PCK@{alpha:g}" for alpha in alphas)]
    found = _means(sums[..., : len(names) + 1], names)
    rest = sums[..., len(names) + 1 :]
    drops = ("structural, chance", "structural, weakest", "cosine, chance", "cosine, weakest")
    found |= _means(rest[..., :5], [f"drop {name}" for name in drops])
    return found | _means(rest[..., 5:], ["on object", "object area"])


def _means(sums: Floats, names: Sequence[str]) -> dict[str, Floats]:
    """Means of columns by the count in the last one; NaN where nothing was counted."""
    count = sums[..., -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(count > 0, sums[..., i] / count, np.nan) for i, name in enumerate(names)
        }
