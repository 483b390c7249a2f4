"""The gate of patch-level re-ranking: a weight chosen without labels, which can be 0.

Two signs speak for re-ranking a collection, and either is enough if it is significant:

- It predicts held-out channels. The descriptor is cut into eight parts by channel; from seven of
  them, with or without patch similarity, we predict which images are nearest by the eighth. A clear
  gain is seen where the descriptor is noisy.
- Neighbors become mutual. If image B is among the nearest of A, is A among the nearest of B? What
  is really similar is so in both directions, while a comparison that errs has hubs. Noise that is
  the same in both directions makes neighbors mutual too, so the held-out channels must not be
  predicted worse.

Most collections of a good model show neither, and the weight is 0.

Both signs rest on channels that repeat each other, as those of a network do: what seven parts know
of an image, the eighth knows too. Whitening and a projection that was fitted to classes take that
away. Then every part has something to say that the others do not know, patches that know anything
of the image predict it, and no sign is left that they know more than the descriptor as a whole. So
a descriptor with decorrelated channels is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match
from clearvit.stats import Interval, bootstrap

SAMPLE = 200  # images that the gate judges a collection by
PARTS = 8
NEAREST = 5
RELATIVE_GAIN = 0.1  # of the agreement without patch similarity, at the lower end of the interval
NEIGHBORS = 10  # that may be mutual
FEWEST_IMAGES = 20
FEWEST_CHANNELS = 64  # parts of shorter descriptors are no views of the same thing
RATIOS = (0.1, 0.25, 0.5, 1.0)  # spread of weight x patch similarity over that of the cosines
ISOLATED = 0.5  # of the agreement by chance; below, parts have nothing in common
REDUNDANT = 0.6  # below: decorrelated. Networks have 0.75 to 1.05, what was whitened 0.02 to 0.5


@dataclass(frozen=True)
class GateDecision:
    """The weight of patch similarity for a collection."""

    weight: float  # 0 means the ranking by descriptors
    note: str  # the decision and the evidence for it, as a sentence


def sample_gate(count: int, *, sample: int = SAMPLE, seed: int = 0) -> Tensor:
    """Choose the images of a collection of `count` that the gate looks at, sorted, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:sample].sort().values


def gate_reranking(
    descriptors: Tensor,
    gallery: LocalFeatures,
    matching: Matching,
    *,
    top: int = 50,
    sample: int = SAMPLE,
    seed: int = 0,
) -> GateDecision:
    """Choose the weight of patch similarity for a collection, once; pass the result to `rerank`.

    Args:
        descriptors: Global descriptors of the collection, (N, D).
        gallery: Local features of the same images.
        matching: How patches are compared.
        top: How many neighbors of each image to compare patch by patch.
        sample: How many images to judge by; the cost is sample x top pairs.
        seed: Seed of the sample and of the cut into parts.
    """
    chosen = sample_gate(len(descriptors), sample=sample, seed=seed)
    images, units = gallery[chosen], F.normalize(descriptors[chosen].float(), dim=-1)
    similarity = (units @ units.T).fill_diagonal_(-torch.inf)
    candidates = similarity.topk(max(0, min(top, len(chosen) - 1)), dim=1).indices
    refusal = _refuse(units, candidates.shape[1], seed)
    if refusal is not None:  # before patches are compared in vain
        return refusal
    scores = [
        match(images[i : i + 1], images[row], matching).score for i, row in enumerate(candidates)
    ]
    return choose_weight(units, candidates, torch.stack(scores), seed=seed)


def choose_weight(
    descriptors: Tensor, candidates: Tensor, patch_similarity: Tensor, *, seed: int = 0
) -> GateDecision:
    """Choose the weight from patch similarities that are already there.

    Args:
        descriptors: Of N images, (N, D).
        candidates: The nearest of these images, (N, K), without the image itself.
        patch_similarity: Of each image and its candidates, (N, K).
        seed: Seed of the cut into parts.
    """
    refusal = _refuse(descriptors, candidates.shape[1], seed)
    if refusal is not None:
        return refusal
    close = torch.where(patch_similarity.isfinite(), patch_similarity, patch_similarity.nanmean())
    near = _candidate_cosines(descriptors, candidates)
    spread = close.std(1).mean().clamp(min=torch.finfo(close.dtype).eps)
    weights = [float(ratio * near.std(1).mean() / spread) for ratio in RATIOS]
    folds = [
        _agreement(seen, held, candidates, close, (0.0, *weights))
        for seen, held in _held_out_parts(descriptors, seed)
    ]
    agreement = torch.stack(folds).mean(0)  # (1 + weights, N)
    mutual = torch.stack([_mutual(near + w * close, candidates) for w in (0.0, *weights)])
    gains, mutual_gains = (
        {w: bootstrap(rows[1 + i] - rows[0]) for i, w in enumerate(weights)}
        for rows in (agreement, mutual)
    )
    base = float(agreement[0].mean())
    if base < ISOLATED * NEAREST / candidates.shape[1]:
        return _decorrelated(f"the nearest by one part are those by the others in {base:.1%}")
    weight, predicting = _decide(gains, mutual_gains, base)
    shown = weight or predicting
    return GateDecision(
        weight,
        f"{_verdict(weight)}: mutual neighbors {float(mutual[0].mean()):.1%}, with patch-level"
        f" re-ranking {_points(mutual_gains[shown])}; agreement with held-out channels {base:.1%},"
        f" with patch-level re-ranking {_points(gains[shown])}.",
    )


def _decide(
    gains: dict[float, Interval], mutual_gains: dict[float, Interval], base: float
) -> tuple[float, float]:
    """Give the weight to use, 0 for none, and the one that predicts held-out channels best."""
    predicting = max(gains, key=lambda w: gains[w].low)
    agreeing = {w: g.low for w, g in mutual_gains.items() if g.low > 0 and gains[w].mean >= 0}
    if gains[predicting].low > RELATIVE_GAIN * base:
        return predicting, predicting
    return max(agreeing, key=lambda w: agreeing[w], default=0.0), predicting


def _redundancy(descriptors: Tensor, seed: int) -> float:
    """Compare how much channels correlate with how much random directions do.

    Cosines are the same in any rotation of the descriptors. The channels of a network are as good
    as random directions, and the ratio is 1; principal directions do not correlate at all.
    """
    generator = torch.Generator().manual_seed(seed)
    units = F.normalize(descriptors.float(), dim=-1).cpu()
    width = units.shape[1]
    rotation = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    smallest = torch.finfo(units.dtype).tiny
    ours, random = (_mean_squared_correlation(one) for one in (units, units @ rotation))
    return ours / max(random, smallest)


def _mean_squared_correlation(vectors: Tensor) -> float:
    """Average the squared correlations of all pairs of channels of vectors (N, D)."""
    centered = vectors - vectors.mean(0)
    units = F.normalize(centered, dim=0)
    squares = (units.T @ units).square()
    width = len(squares)
    return float(squares.sum() - squares.diagonal().sum()) / (width * (width - 1))


def _held_out_parts(descriptors: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Descriptors without one part of their channels, and that part."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(descriptors.shape[1], generator=generator)
    for part in order.tensor_split(PARTS):
        rest = order[~torch.isin(order, part)]
        yield descriptors[:, rest], descriptors[:, part]


def _agreement(
    seen: Tensor, held: Tensor, candidates: Tensor, close: Tensor, weights: Sequence[float]
) -> Tensor:
    """Fraction of the nearest by held-out channels that each weight finds, (weights, N)."""
    truth = _candidate_cosines(held, candidates).topk(NEAREST, dim=1).indices
    is_near = torch.zeros_like(close, dtype=torch.bool).scatter_(1, truth, True)
    base = _candidate_cosines(seen, candidates)
    found = [(base + w * close).topk(NEAREST, dim=1).indices for w in weights]
    return torch.stack([is_near.gather(1, index).double().mean(1) for index in found])


def _mutual(score: Tensor, candidates: Tensor) -> Tensor:
    """Fraction of each image's nearest that have it among their own nearest, (N,)."""
    count = min(NEIGHBORS, candidates.shape[1])
    nearest = candidates.gather(1, score.topk(count, dim=1).indices)
    near = torch.zeros(len(score), len(score), dtype=torch.bool, device=score.device)
    near.scatter_(1, nearest, True)
    return (near & near.T).sum(1).double() / count


def _candidate_cosines(descriptors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines of every image with its candidates, (N, K)."""
    units = F.normalize(descriptors.float(), dim=-1)
    return (units @ units.T).gather(1, candidates)


def _refuse(descriptors: Tensor, neighbors: int, seed: int) -> GateDecision | None:
    """Keep descriptors (N, D) that the signs cannot judge by so many neighbors."""
    if descriptors.shape[1] < FEWEST_CHANNELS:
        return _too_few(f"{descriptors.shape[1]} channels", f"{FEWEST_CHANNELS} channels")
    if len(descriptors) < FEWEST_IMAGES or neighbors <= NEAREST:
        return _too_few(f"{len(descriptors)} images", f"{FEWEST_IMAGES} images")
    redundancy = _redundancy(descriptors, seed)
    if redundancy < REDUNDANT:
        return _decorrelated(f"they correlate {redundancy:.2f} times as much as random directions")
    return None


def _decorrelated(evidence: str) -> GateDecision:
    return GateDecision(
        0.0,
        "The ranking by descriptors is kept: their channels are decorrelated, as by whitening or a"
        f" trained projection ({evidence}), so nothing but labels can tell whether patch-level"
        " re-ranking helps. Set a weight to use it anyway.",
    )


def _too_few(have: str, needed: str) -> GateDecision:
    return GateDecision(
        0.0,
        f"The ranking by descriptors is kept: {have} are too few to tell whether patch-level"
        f" re-ranking helps; the gate needs {needed}. Set a weight to use it anyway.",
    )


def _verdict(weight: float) -> str:
    if weight > 0:
        return f"Patch-level re-ranking helps on this collection and is used, weight {weight:.3g}"
    return (
        "Patch-level re-ranking does not help on this collection; the ranking by descriptors is"
        " kept"
    )


def _points(gain: Interval) -> str:
    return (
        f"{gain.mean * 100:+.1f} points (95 % CI {gain.low * 100:+.1f} to {gain.high * 100:+.1f})"
    )
