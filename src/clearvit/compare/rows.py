"""From measurements to one row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearvit.compare.cost import cost_ratio
from clearvit.compare.measures import agreement, cosine_distances, gap_closed, neighbour_accuracy
from clearvit.compare.norms import NormRule
from clearvit.compare.reference import Reference
from clearvit.compare.study import Material, Study
from clearvit.diagnose.verdict import Verdict


@dataclass(frozen=True)
class Yardstick:
    """The many-view average of the first model, and how far its own tokens are from it."""

    views: int
    images: tuple[str, ...]
    raw: float  # mean of 1 - cosine of one forward pass
    few: float  # and of the average of ten views


@dataclass(frozen=True)
class Row:
    """What was measured of one model; None where it cannot be, and a note says why.

    Attributes:
        model: Its name, numbered if another model has the same.
        verdict: The gravest finding of the diagnosis.
        shares: Share of tokens beyond the rule's cutoffs, 0..1, in each block of the rule.
        peak_share: The same in the block where the rule's own model has most.
        worst_share: The largest of the shares.
        largest: Largest norm in that block, times the median of its image; the smallest if the rule
            counts short tokens.
        register_norms: Mean norm of each register there, times the median of the patches.
        equivariance: Change of features when the picture is shifted, as a share of the distance
            between different contents.
        distances: Mean over patches of 1 - cosine to the many-view reference, one per image.
        distance: Their mean.
        gap_closed: How far it went from the raw model, 0, to the average of ten views, 1.
        agreement: Mean cosine of class tokens (or mean patches) to those of the first model.
        accuracy: Nearest-neighbour accuracy, 0..1.
        milliseconds: Per image, median.
        cost: As a multiple of the first model's, median over rounds.
        parameters: Weights of the network.
        notes: Why cells are empty.
    """

    model: str
    verdict: Verdict | None
    shares: tuple[float, ...] | None
    peak_share: float | None
    worst_share: float | None
    largest: float | None
    register_norms: tuple[float, ...]
    equivariance: float | None
    distances: tuple[float, ...] | None
    distance: float | None
    gap_closed: float | None
    agreement: float | None
    accuracy: float | None
    milliseconds: float
    cost: float
    parameters: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the row as JSON holds it."""
        return asdict(self)


class Counted(NamedTuple):
    """Artifact tokens by the rule."""

    shares: tuple[float, ...] | None = None
    at_peak: float | None = None
    worst: float | None = None
    largest: float | None = None
    register_norms: tuple[float, ...] = ()
    note: str = ""


class Near(NamedTuple):
    """Nearness to the first model."""

    distances: tuple[float, ...] | None = None
    agreement: float | None = None
    note: str = ""


def measure_yardstick(first: Study, material: Material, average: Reference) -> Yardstick:
    """Hold the first model against its own many-view average."""
    raw = cosine_distances(held_patches(first, material), average.many)
    few = cosine_distances(average.few, average.many)
    names = tuple(picture.name for picture in material.held)
    return Yardstick(average.views, names, float(raw.mean()), float(few.mean()))


@dataclass(frozen=True)
class Against:
    """What every model is held against."""

    first: Study
    times: Sequence[float]  # of the first model, milliseconds of each round
    material: Material
    average: Reference  # of the first model, over many views
    yardstick: Yardstick
    rule: NormRule | None  # by which artifact tokens are counted
    neighbours: int  # that vote on the class


def make_row(one: Study, times: Sequence[float], against: Against) -> Row:
    """Put together what was measured of one model, `times` in milliseconds of each round."""
    counted = _counted(one, against.rule)
    near = _near(one, against)
    distance = closed = right = None
    if near.distances is not None:
        distance = fmean(near.distances)
        closed = gap_closed(against.yardstick.raw, distance, against.yardstick.few)
    if one.labelled is not None:
        right = neighbour_accuracy(one.labelled, against.material.labels, against.neighbours)
    return Row(
        model=one.name,
        verdict=None if one.diagnosis is None else one.diagnosis.verdict,
        shares=counted.shares,
        peak_share=counted.at_peak,
        worst_share=counted.worst,
        largest=counted.largest,
        register_norms=counted.register_norms,
        equivariance=one.equivariance,
        distances=near.distances,
        distance=distance,
        gap_closed=closed,
        agreement=near.agreement,
        accuracy=right,
        milliseconds=median(times),
        cost=cost_ratio(times, against.times),
        parameters=sum(p.numel() for p in one.backbone.network.parameters()),
        notes=tuple(note for note in (counted.note, near.note) if note),
    )


def held_patches(one: Study, material: Material) -> Tensor:
    """Patches of the pictures of the reference, (I, N, C)."""
    return torch.stack([one.finals.patches[picture.name] for picture in material.held])


def _counted(one: Study, rule: NormRule | None) -> Counted:
    """Count artifact tokens where the rule's model has them."""
    if one.diagnosis is None:
        return Counted(note="there are no blocks to look into, so no verdict and no norms")
    if rule is None:
        return Counted()
    if len(one.diagnosis.blocks) != rule.depth:
        depth = len(one.diagnosis.blocks)
        return Counted(
            note=f"it has {depth} blocks where '{rule.model}' has {rule.depth}: they do not match"
        )
    shares = rule.shares(one.diagnosis.observations.norms)
    block = one.diagnosis.blocks[rule.peak]
    return Counted(
        shares,
        shares[rule.blocks.index(rule.peak)],
        max(shares),
        block.largest if rule.side == "high" else block.smallest,
        block.register_norms,
    )


def _near(one: Study, against: Against) -> Near:
    """Hold a model against the first, where the two speak of the same places and channels."""
    first = against.first
    mine, others = one.backbone, first.backbone
    if mine.width != others.width:
        return Near(
            note=f"its tokens have {mine.width} channels, those of the first {others.width}"
        )
    similar = _has_class(one) == _has_class(first)
    kept = agreement(one.finals.summaries, first.finals.summaries) if similar else None
    if one.finals.grid != first.finals.grid or mine.preprocessing.fit != others.preprocessing.fit:
        height, width = one.finals.grid
        note = f"its grid of {height} x {width} patches shows other places than that of the first"
        return Near(agreement=kept, note=note)
    distances = cosine_distances(held_patches(one, against.material), against.average.many)
    return Near(tuple(distances.tolist()), kept)


def _has_class(one: Study) -> bool:
    return "class" in one.backbone.prefix_names
