"""Does structure help on this collection? A choice of the weight without labels, which can be 0.

Two signs speak for structure, and either is enough if it is sure:

- It predicts what was held back. The descriptor is cut into eight parts by channel; from seven of
  them, with or without structure, we predict which images are nearest by the eighth. A clear gain
  is seen where the descriptor is noisy.
- Neighbours become mutual. If image B is among the nearest of A, is A among the nearest of B? What
  is really alike is so in both directions, while a comparison that errs has favourites. Chance that
  is the same in both directions makes neighbours mutual too, so what was held back must not be
  predicted worse.

Most collections of a good model show neither, and the weight is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.matching import Locals, Matching, Method, match
from clearvit.retrieval.metrics import Interval, bootstrap

PARTS = 8
NEAREST = 5
RELATIVE_GAIN = 0.1  # of the agreement without structure, at the lower end of the interval
AROUND = 10  # neighbours that may be mutual
FEWEST_IMAGES = 20
FEWEST_CHANNELS = 64  # parts of shorter descriptors are no views of the same thing
SHARES = (0.1, 0.25, 0.5, 1.0)  # spread of the structural term, as a share of the global one's


@dataclass(frozen=True)
class Guarded:
    """A weight for a collection, and the evidence for it."""

    weight: float  # of the structural term; 0 means the global ranking
    note: str  # the decision as a sentence
    agreement: float = 0.0  # of the global ranking with what was held back, 0..1
    gains: dict[float, Interval] = field(default_factory=dict)  # of agreement, by weight
    mutual: float = 0.0  # share of mutual neighbours in the global ranking, 0..1
    mutual_gains: dict[float, Interval] = field(default_factory=dict)  # of that share, by weight

    @property
    def helps(self) -> bool:
        """Whether structure is used at all."""
        return self.weight > 0


def guard(
    descriptors: Tensor,
    gallery: Locals | Tensor,
    *,
    method: Method | Matching = "transport",
    top: int = 50,
    sample: int = 200,
    seed: int = 0,
) -> Guarded:
    """Choose the weight of structure for a collection, once; pass the result to `rerank`.

    Args:
        descriptors: Global descriptors of the collection, (N, C).
        gallery: Unit local vectors (N, R, C), or these with weights.
        method: As in `rerank`.
        top: How many neighbours of each image to compare closely.
        sample: How many images to judge by; the cost is sample x top pairs.
        seed: Of the sample and of the cut into parts.
    """
    images = gallery if isinstance(gallery, Locals) else Locals(gallery)
    matching = method if isinstance(method, Matching) else Matching(method)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(descriptors), generator=generator)[:sample].sort().values
    if len(chosen) < FEWEST_IMAGES:
        return Guarded(0.0, _few(f"{len(chosen)} images", f"{FEWEST_IMAGES} images"))
    images, units = images[chosen], F.normalize(descriptors[chosen].float(), dim=-1)
    similarity = (units @ units.T).fill_diagonal_(-torch.inf)
    candidates = similarity.topk(min(top, len(chosen) - 1), dim=1).indices
    structural = torch.stack(
        [match(images[i : i + 1], images[row], matching).score for i, row in enumerate(candidates)]
    )
    return choose_weight(units, candidates, structural, seed=seed)


def choose_weight(
    descriptors: Tensor,
    candidates: Tensor,
    structural: Tensor,
    *,
    view: Tensor | None = None,
    seed: int = 0,
) -> Guarded:
    """Choose the weight from structural similarities that are already there.

    Args:
        descriptors: Of N images, (N, C).
        candidates: The nearest of these images, (N, K), without the image itself.
        structural: Their structural similarity, (N, K).
        view: Descriptors of another view of the same images, (N, C), such as a crop. It is then
            what is held back, instead of channels.
        seed: Of the cut into parts.
    """
    if view is None and descriptors.shape[1] < FEWEST_CHANNELS:
        needed = f"{FEWEST_CHANNELS} channels"
        return Guarded(0.0, _few(f"{descriptors.shape[1]} channels", needed))
    if len(descriptors) < FEWEST_IMAGES or candidates.shape[1] <= NEAREST:
        return Guarded(0.0, _few(f"{len(descriptors)} images", f"{FEWEST_IMAGES} images"))
    whole = _among(descriptors, candidates)
    structural = torch.where(structural.isfinite(), structural, structural.nanmean())
    spread = structural.std(1).mean().clamp(min=torch.finfo(structural.dtype).eps)
    weights = [float(share * whole.std(1).mean() / spread) for share in SHARES]
    folds = [(descriptors, view)] if view is not None else _parts(descriptors, seed)
    agreement = torch.stack(
        [_agreement(a, b, candidates, structural, (0.0, *weights)) for a, b in folds]
    ).mean(0)  # (1 + weights, N)
    base = float(agreement[0].mean())
    gains = {w: bootstrap(agreement[1 + i] - agreement[0]) for i, w in enumerate(weights)}
    near = [_mutual(whole + w * structural, candidates) for w in (0.0, *weights)]
    mutual = float(near[0].mean())
    mutual_gains = {w: bootstrap(near[1 + i] - near[0]) for i, w in enumerate(weights)}
    weight = 0.0
    predicts = max(gains, key=lambda w: gains[w].low)
    agreeing = {w: g.low for w, g in mutual_gains.items() if g.low > 0 and gains[w].mean >= 0}
    if gains[predicts].low > RELATIVE_GAIN * base:
        weight = predicts
    elif agreeing and view is None:
        weight = max(agreeing, key=lambda w: agreeing[w])
    shown = weight or predicts
    evidence = (
        f"mutual neighbours {mutual:.1%}, with structure {_points(mutual_gains[shown])}; agreement"
        f" with held-back descriptors {base:.1%}, with structure {_points(gains[shown])}"
    )
    return Guarded(weight, _note(weight, evidence), base, gains, mutual, mutual_gains)


def _parts(descriptors: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Descriptors without one part of their channels, and that part."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(descriptors.shape[1], generator=generator)
    for part in order.tensor_split(PARTS):
        rest = order[~torch.isin(order, part)]
        yield descriptors[:, rest], descriptors[:, part]


def _agreement(
    seen: Tensor, held: Tensor, candidates: Tensor, structural: Tensor, weights: Sequence[float]
) -> Tensor:
    """Share of the nearest by what is held back that each weight finds, (weights, N)."""
    truth = _among(held, candidates).topk(NEAREST, dim=1).indices
    is_near = torch.zeros_like(structural, dtype=torch.bool).scatter_(1, truth, True)
    base = _among(seen, candidates)
    found = [(base + w * structural).topk(NEAREST, dim=1).indices for w in weights]
    return torch.stack([is_near.gather(1, index).double().mean(1) for index in found])


def _mutual(score: Tensor, candidates: Tensor) -> Tensor:
    """Share of each image's nearest that have it among their own nearest, (N,)."""
    count = min(AROUND, candidates.shape[1])
    nearest = candidates.gather(1, score.topk(count, dim=1).indices)
    near = torch.zeros(len(score), len(score), dtype=torch.bool, device=score.device)
    near.scatter_(1, nearest, True)
    return (near & near.T).sum(1).double() / count


def _among(descriptors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines of every image with its candidates, (N, K)."""
    units = F.normalize(descriptors.float(), dim=-1)
    return (units @ units.T).gather(1, candidates)


def _few(have: str, needed: str) -> str:
    return (
        f"The global ranking is kept: with {have} nobody can tell whether structure helps; the"
        f" guard needs {needed}. Set a weight to use structure anyway."
    )


def _note(weight: float, evidence: str) -> str:
    if weight > 0:
        return (
            f"Structure helps on this collection and is used with weight {weight:.3g}: {evidence}."
        )
    return f"Structure does not help on this collection; the global ranking is kept: {evidence}."


def _points(gain: Interval) -> str:
    return (
        f"{gain.mean * 100:+.1f} points (95 % interval {gain.low * 100:+.1f} to"
        f" {gain.high * 100:+.1f})"
    )
