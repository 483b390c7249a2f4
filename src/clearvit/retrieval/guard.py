"""Does structure help on this collection? A choice of the weight without labels, which can be 0.

The descriptor is cut into eight parts by channel. Each part in turn is held back: from the other
seven, with or without structure, we predict which images are nearest by the part held back. Where
the descriptor is noisy, structure adds what the seven parts miss and predicts better; where it
brings only its own idea of likeness it predicts worse. Most collections of a good model are of the
second kind, so the weight is 0 unless the gain is large and sure.
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
    best = max(gains, key=lambda w: gains[w].low)
    helps = gains[best].low > RELATIVE_GAIN * base
    return Guarded(best if helps else 0.0, _note(helps, best, base, gains[best]), base, gains)


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


def _among(descriptors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines of every image with its candidates, (N, K)."""
    units = F.normalize(descriptors.float(), dim=-1)
    return (units @ units.T).gather(1, candidates)


def _few(have: str, needed: str) -> str:
    return (
        f"The global ranking is kept: with {have} nobody can tell whether structure helps; the"
        f" guard needs {needed}. Set a weight to use structure anyway."
    )


def _note(helps: bool, weight: float, base: float, gain: Interval) -> str:
    evidence = (
        f"agreement with held-back descriptors {base:.1%}, with structure"
        f" {gain.mean * 100:+.1f} points (95 % interval {gain.low * 100:+.1f} to"
        f" {gain.high * 100:+.1f})"
    )
    if helps:
        return (
            f"Structure helps on this collection and is used with weight {weight:.3g}: {evidence}."
        )
    return f"Structure does not help on this collection; the global ranking is kept: {evidence}."
