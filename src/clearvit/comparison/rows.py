"""From measurements to one row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.artifacts.verdict import Verdict
from clearvit.comparison.norm_rule import NormRule
from clearvit.comparison.reference import Reference
from clearvit.comparison.study import EvalImages, Study
from clearvit.probes.knn import fit_knn
from clearvit.timing import speed_ratios

TEMPERATURE = 0.07  # of the kNN votes: DINO's protocol, Caron et al., ICCV 2021


@dataclass(frozen=True)
class ReferenceGap:
    """How far the first model is from its own many-view average, and ten views of it are."""

    views: int
    images: tuple[str, ...]
    raw: float  # mean of 1 - cosine of one forward pass
    few: float  # and of the average of ten views


@dataclass(frozen=True)
class ComparisonRow:
    """What was measured of one model; None where it cannot be, and a note says why.

    Attributes:
        model: Its name, numbered if another model has the same.
        verdict: The most serious finding of the diagnosis.
        outlier_fractions: Fraction of tokens beyond the rule's cutoffs, in each block of the rule.
        peak_fraction: The same in the block where the rule's own model has most.
        worst_fraction: The largest of the fractions.
        extreme_norm: Largest norm in that block relative to the median of its image; the smallest
            if the rule counts low-norm tokens.
        register_norms: Mean norm of each register there, relative to the median of the patches.
        equivariance: Change of features when the image is shifted, relative to the distance
            between different contents.
        distances: Mean over patches of 1 - cosine to the many-view reference, one per image.
        distance: Their mean.
        gap_closed: 0 is the distance of the raw model, 1 that of the average of ten views.
        class_similarity: Mean cosine of class tokens (or mean patches) to those of the first model.
        knn_accuracy: Leave-one-out kNN accuracy, 0..1.
        milliseconds: Per image, median.
        cost_ratio: Time relative to the first model's, median over rounds.
        parameters: Number of weights.
        notes: Why cells are empty.
    """

    model: str
    verdict: Verdict | None
    outlier_fractions: tuple[float, ...] | None
    peak_fraction: float | None
    worst_fraction: float | None
    extreme_norm: float | None
    register_norms: tuple[float, ...]
    equivariance: float | None
    distances: tuple[float, ...] | None
    distance: float | None
    gap_closed: float | None
    class_similarity: float | None
    knn_accuracy: float | None
    milliseconds: float
    cost_ratio: float
    parameters: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the row as JSON holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Baseline:
    """What every model is compared with."""

    first: Study
    times: Sequence[float]  # of the first model, milliseconds of each round
    data: EvalImages
    average: Reference  # of the first model, over many views
    gap: ReferenceGap
    rule: NormRule | None  # by which artifact tokens are counted
    neighbors: int


class NormCounts(NamedTuple):
    """Artifact tokens by the rule."""

    fractions: tuple[float, ...] | None = None
    at_peak: float | None = None
    worst: float | None = None
    extreme_norm: float | None = None
    register_norms: tuple[float, ...] = ()
    note: str = ""


class Similarity(NamedTuple):
    """How similar the tokens are to those of the first model."""

    distances: tuple[float, ...] | None = None
    class_similarity: float | None = None
    note: str = ""


def make_row(study: Study, times: Sequence[float], baseline: Baseline) -> ComparisonRow:
    """Put together what was measured of one model, `times` in milliseconds of each round."""
    counts = _count_outliers(study, baseline.rule)
    similarity = _compare_tokens(study, baseline)
    distance = closed = accuracy = None
    if similarity.distances is not None:
        distance = fmean(similarity.distances)
        closed = gap_closed(baseline.gap.raw, distance, baseline.gap.few)
    if study.labeled is not None:
        accuracy = knn_accuracy(study.labeled, baseline.data.labels, baseline.neighbors)
    return ComparisonRow(
        model=study.name,
        verdict=None if study.diagnosis is None else study.diagnosis.verdict,
        outlier_fractions=counts.fractions,
        peak_fraction=counts.at_peak,
        worst_fraction=counts.worst,
        extreme_norm=counts.extreme_norm,
        register_norms=counts.register_norms,
        equivariance=study.equivariance,
        distances=similarity.distances,
        distance=distance,
        gap_closed=closed,
        class_similarity=similarity.class_similarity,
        knn_accuracy=accuracy,
        milliseconds=median(times),
        cost_ratio=median(speed_ratios(times, baseline.times)),
        parameters=sum(p.numel() for p in study.backbone.network.parameters()),
        notes=tuple(note for note in (counts.note, similarity.note) if note),
    )


def measure_gap(first: Study, data: EvalImages, average: Reference) -> ReferenceGap:
    """Measure how far the first model is from its own many-view average."""
    raw = cosine_distances(reference_patches(first, data), average.many)
    few = cosine_distances(average.few, average.many)
    names = tuple(image.name for image in data.reference)
    return ReferenceGap(average.views, names, float(raw.mean()), float(few.mean()))


def reference_patches(study: Study, data: EvalImages) -> Tensor:
    """Patches of the images of the reference, (I, N, C)."""
    return torch.stack([study.tokens.patches[image.name] for image in data.reference])


def cosine_distances(patches: Tensor, reference: Tensor) -> Tensor:
    """Average 1 - cosine over the patches of each image, (B, N, C) twice -> (B,) float64."""
    cosine = F.cosine_similarity(patches.double(), reference.double(), dim=-1)
    return 1 - cosine.mean(dim=-1)


def gap_closed(raw: float, model: float, target: float) -> float | None:
    """Give the part of the gap to `target` that is closed: (raw - model) / (raw - target).

    0 is as far from the reference as the raw model, 1 as near as the target; more than 1 is nearer
    and less than 0 farther. None if the target is no nearer than the raw model: there is no gap.
    """
    gap = raw - target
    return (raw - model) / gap if gap > 1e-12 else None


def mean_cosine(features: Tensor, others: Tensor) -> float:
    """Average the cosine between two descriptions of the same images, (I, C) twice -> -1..1."""
    cosine = F.cosine_similarity(features.double(), others.double(), dim=-1)
    return float(cosine.mean())


def knn_accuracy(features: Tensor, labels: Tensor, k: int = 1) -> float:
    """Classify every image by its k nearest others; fraction of right answers, 0..1.

    Args:
        features: One vector per image, (I, C), compared by their cosine.
        labels: Class of each image from 0, (I,).
        k: Neighbors that vote; a vote weighs exp(cosine / 0.07).
    """
    knn = fit_knn(features.double(), labels, k=k, temperature=TEMPERATURE)
    return float((knn.leave_one_out().argmax(1) == labels).double().mean())


def _count_outliers(study: Study, rule: NormRule | None) -> NormCounts:
    """Count artifact tokens in the blocks where the rule's model has them."""
    if study.diagnosis is None:
        return NormCounts(note="it has no blocks to look into, so no verdict and no norms")
    if rule is None:
        return NormCounts()
    depth = len(study.diagnosis.blocks)
    if depth != rule.depth:
        return NormCounts(
            note=f"it has {depth} blocks and '{rule.model}' has {rule.depth}: norms per block do"
            " not match"
        )
    fractions = rule.fractions(study.diagnosis.observations.norms)
    block = study.diagnosis.blocks[rule.peak]
    return NormCounts(
        fractions,
        fractions[rule.blocks.index(rule.peak)],
        max(fractions),
        block.largest if rule.side == "high" else block.smallest,
        block.register_norms,
    )


def _compare_tokens(study: Study, baseline: Baseline) -> Similarity:
    """Compare tokens with the first model's, where both have the same positions and channels."""
    first = baseline.first
    mine, others = study.backbone, first.backbone
    if mine.width != others.width:
        return Similarity(
            note=f"its tokens have {mine.width} channels, those of the first {others.width}"
        )
    similarity = None
    if study.has_class_token == first.has_class_token:
        similarity = mean_cosine(study.tokens.image_features, first.tokens.image_features)
    grids = (study.tokens.grid, first.tokens.grid)
    if grids[0] != grids[1] or mine.preprocessing.fit != others.preprocessing.fit:
        height, width = study.tokens.grid
        note = f"its grid of {height} x {width} patches does not match that of the first"
        return Similarity(class_similarity=similarity, note=note)
    distances = cosine_distances(reference_patches(study, baseline.data), baseline.average.many)
    return Similarity(tuple(distances.tolist()), similarity)
