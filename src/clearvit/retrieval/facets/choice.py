"""Choose whitening, facet and weight of the patches for a collection, without labels.

A comparison of images is good if it does not mind what nobody minds: of a random crop, mirrored and
in other colors, the nearest images should be those of the whole image, and the image itself should
come first. So each candidate is judged by how many of the five nearest stay the same between an
image and two crops of it, and by how often a crop finds its image; over the same images for all
candidates, as a difference to plain descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.facets.crops import CroppedSample
from clearvit.retrieval.facets.facet import Facet
from clearvit.retrieval.matching.patch_matching import chamfer
from clearvit.retrieval.whitening import Whitening
from clearvit.stats import Interval, bootstrap

NEAREST = 5
FOUND = 0.25  # what finding the image counts, beside 1 for keeping the neighbors
DESCRIPTORS = ((64, 0.25), (64, 0.5), (128, 0.5))  # channels and power of the whitenings tried
RATIOS = (0.5, 1.0, 2.0, 8.0)  # spread of weight x patch similarity over that of the cosines
PATCH_GAIN = 0.01  # that re-ranking must be worth at least, at the lower end of the interval
LATE = 0.05  # that an inner block must be better than the last one, which knows more of classes
POWER = 1.0  # of the whitening of patches

Similarities = tuple[Tensor, ...]  # of Q images and each of their crops with G images, (Q, G) each


@dataclass(frozen=True)
class Choice:
    """What was chosen for a collection."""

    descriptor: Whitening | None  # None: plain
    patches: Whitening | None
    facet: Facet
    weight: float  # of the patch similarity by Chamfer; 0: ranked by descriptors
    note: str
    uniform: bool = False  # every patch counts alike, whatever the weights of the sample are


@dataclass(frozen=True)
class Candidate:
    """One way to compare images and what it is worth."""

    name: str
    similarities: Similarities
    stable: Tensor  # (Q,): fraction of the nearest that crops keep
    found: Tensor  # (Q,): fraction of the crops that find their image

    @property
    def value(self) -> Tensor:
        """What a candidate is judged by, (Q,)."""
        return self.stable + FOUND * self.found

    def gain(self, base: Candidate) -> Interval:
        """Give the difference to another one on the same images, with its interval."""
        return bootstrap(self.value - base.value)


def judge(name: str, similarities: Similarities) -> Candidate:
    """Measure how stable neighbors are under crops.

    Args:
        name: Of the candidate.
        similarities: Of Q images, and of each of their crops, with G images whose first Q are the
            same; (Q, G) each.
    """
    whole, *crops = similarities
    own = torch.arange(len(whole))
    hits = torch.stack([(crop.argmax(1) == own).double() for crop in crops])
    near = []
    for one in similarities:
        others = one.clone()
        others[own, own] = -torch.inf
        index = others.topk(min(NEAREST, one.shape[1] - 1), dim=1).indices
        near.append(torch.zeros_like(one, dtype=torch.bool).scatter_(1, index, True))
    pairs = [(i, j) for i in range(len(near)) for j in range(i)]
    shared = [(near[i] & near[j]).sum(1).double() / near[i].sum(1) for i, j in pairs]
    return Candidate(name, similarities, torch.stack(shared).mean(0), hits.mean(0))


def choose(
    sample: CroppedSample,
    *,
    whiten: str,
    facets: Mapping[Facet, int],
    weigh: bool,
    uniform: bool = False,
) -> Choice:
    """Choose for a collection by a sample of it.

    Args:
        sample: Features of images and crops.
        whiten: Of descriptors, "auto", "yes" or "no".
        facets: The facets to choose from, and how many channels each keeps; 0 keeps it plain.
        weigh: Whether to choose a weight of the patch similarity; else it is 0.
        uniform: Whether to also try patches that count alike, beside the weights of the sample.
    """
    plain = judge("the plain descriptor", _cosines(sample, None))
    base, whitening, notes = plain, None, []
    if whiten != "no":
        base, whitening, note = _choose_descriptor(sample, plain, must=whiten == "yes")
        notes.append(note)
    judged = [
        one
        for facet, keep in facets.items()
        for one in _judge_facet(sample, base, facet, keep, uniform=uniform)
    ]
    best = max(judged, key=lambda one: float(one.alone.value.mean()) - one.handicap)
    plainly = Choice(whitening, best.whitening, best.facet, 0.0, "", best.uniform)
    if not weigh:
        return replace(plainly, note=" ".join(notes))
    options = [(one, weight, mixed) for one in judged for weight, mixed in one.mixed]
    gains = [mixed.gain(base) for _, _, mixed in options]
    top = max(range(len(options)), key=lambda i: gains[i].low - options[i][0].handicap)
    one, weight, _ = options[top]
    if gains[top].low <= PATCH_GAIN:
        notes.append(
            f"Images are ranked by descriptors: patches ({one.facet}) change the stability by"
            f" {_points(gains[top])}."
        )
        return replace(plainly, note=" ".join(notes))
    alike = ", all patches alike" if one.uniform else ""
    notes.append(
        f"The nearest are re-ranked by their patches ({one.facet}, Chamfer, weight {weight:.3g}"
        f"{alike}), which changes the stability by {_points(gains[top])}."
    )
    return Choice(whitening, one.whitening, one.facet, weight, " ".join(notes), one.uniform)


@dataclass(frozen=True)
class _JudgedFacet:
    facet: Facet
    uniform: bool  # whether patches count alike
    whitening: Whitening | None
    alone: Candidate
    mixed: list[tuple[float, Candidate]]  # weight, and descriptors with so much patch similarity
    handicap: float  # of an inner block


def _choose_descriptor(
    sample: CroppedSample, plain: Candidate, *, must: bool
) -> tuple[Candidate, Whitening | None, str]:
    tried = []
    for channels, power in DESCRIPTORS:
        if channels < sample.images.descriptors.shape[1]:
            fitted = Whitening.fit(sample.images.descriptors, channels=channels, power=power)
            name = f"whitening to {channels} channels, power {power:g}"
            tried.append((judge(name, _cosines(sample, fitted)), fitted))
    if not tried:
        return plain, None, "The descriptor is too short to be whitened."
    gains = [one.gain(plain) for one, _ in tried]
    top = max(range(len(tried)), key=lambda i: _cautious(gains[i]))
    best, fitted = tried[top]
    why = (
        f"{best.name} changes the stability of neighbors under crops by {_points(gains[top])},"
        f" from {float(plain.value.mean()) * 100:.1f}"
    )
    if must or _cautious(gains[top]) > 0:
        return best, fitted, f"The descriptor is whitened: {why}."
    return plain, None, f"The descriptor is kept as it is: {why}."


def _cautious(gain: Interval) -> float:
    """Give the gain less about one standard error: half of the way to the end of the interval."""
    return (gain.mean + gain.low) / 2


def _judge_facet(
    sample: CroppedSample, base: Candidate, facet: Facet, channels: int, *, uniform: bool
) -> list[_JudgedFacet]:
    """Judge a facet with the weights of the sample and, if asked for, with patches alike."""
    patches = sample.images.patches[facet]
    fitted = Whitening.fit(patches, channels=channels, power=POWER) if channels else None
    inner = facet.block is not None and facet.block < max(
        f.block or 0 for f in sample.images.patches
    )
    handicap = LATE if inner else 0.0
    found = []
    for number, close in enumerate(_patch_similarities(sample, facet, fitted, uniform=uniform)):
        # Crops take no part in the scale: they are nearer to their image than two images ever are.
        near, apart = (_without_own(s[0]).std() for s in (base.similarities, close))
        weights = [float(r * near / apart.clamp(min=1e-9)) for r in RATIOS]
        mixed = [
            (w, judge("", tuple(a + w * b for a, b in zip(base.similarities, close, strict=True))))
            for w in weights
        ]
        found.append(_JudgedFacet(facet, number == 1, fitted, judge("", close), mixed, handicap))
    return found


def _without_own(similarity: Tensor) -> Tensor:
    own = torch.eye(*similarity.shape, dtype=torch.bool)
    return similarity[~own]


def _cosines(sample: CroppedSample, whitening: Whitening | None) -> Similarities:
    def prepare(descriptors: Tensor) -> Tensor:
        return descriptors if whitening is None else F.normalize(whitening(descriptors), dim=-1)

    gallery = prepare(sample.images.descriptors)
    queries = len(sample.crops[0].descriptors)
    parts = (gallery[:queries], *(prepare(crop.descriptors) for crop in sample.crops))
    return tuple(part @ gallery.T for part in parts)


def _patch_similarities(
    sample: CroppedSample, facet: Facet, whitening: Whitening | None, *, uniform: bool
) -> list[Similarities]:
    """Compare all patches once: by the weights of the sample and, if asked for, alike."""

    def prepare(patches: Tensor) -> Tensor:
        return F.normalize(patches if whitening is None else whitening(patches), dim=-1)

    gallery, weights = prepare(sample.images.patches[facet]), sample.images.weights
    queries = len(sample.crops[0].descriptors)
    parts = [(gallery[:queries], weights[:queries])]
    parts += [(prepare(crop.patches[facet]), crop.weights) for crop in sample.crops]
    compared = [
        torch.stack(
            [_chamfer(one, u, gallery, weights, uniform) for one, u in zip(*part, strict=True)], 1
        )
        for part in parts
    ]
    return [tuple(part[kind] for part in compared) for kind in range(1 + uniform)]


def _chamfer(one: Tensor, u: Tensor, gallery: Tensor, weights: Tensor, uniform: bool) -> Tensor:
    """Compare one image with G others, (1, G), or (2, G) with patches alike in the second row.

    As `matching.chamfer`, but faster where every weight is above 0.
    """
    cosines = one @ gallery.transpose(1, 2)  # (G, R, R)
    ours, theirs = cosines.amax(2), cosines.amax(1)
    found = (ours @ u + (theirs * weights).sum(1)) / 2
    if bool((u <= 0).any() or (weights <= 0).any()):
        found = chamfer(cosines, u.expand(len(gallery), -1), weights)
    alike = (ours.mean(1) + theirs.mean(1)) / 2
    return torch.stack([found, alike] if uniform else [found])


def _points(gain: Interval) -> str:
    return f"{gain.mean * 100:+.1f} points [{gain.low * 100:+.1f}, {gain.high * 100:+.1f}]"
