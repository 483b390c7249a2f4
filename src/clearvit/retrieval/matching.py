"""How alike two images are, patch against patch: transport and what must be beaten to earn it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clearvit.errors import ModelError, closest
from clearvit.retrieval.marginals import cross_correlation, normalised, positive_cross_correlation
from clearvit.retrieval.transport import transport

Method = Literal["transport", "mutual", "chamfer"]
METHODS = ("transport", "mutual", "chamfer")


@dataclass(frozen=True)
class Matching:
    """How to compare; only transport reads epsilon and mass."""

    method: Method = "transport"
    epsilon: float = 0.05
    mass: float | Literal["auto"] = 1.0
    cross: bool = False  # multiply the weights with DIML's cross-correlation to the other image

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ModelError(
                f"method is '{self.method}'; use {', '.join(METHODS)}."
                f"{closest(self.method, METHODS)}"
            )


@dataclass(frozen=True)
class Locals:
    """Local vectors of B images, ready to be matched."""

    patches: Tensor  # (B, R, C), unit length
    weights: Tensor | None = None  # (B, R): marginals; uniform if None
    descriptors: Tensor | None = None  # (B, C), unit length; only cross-correlation needs them

    def __len__(self) -> int:
        """How many images."""
        return len(self.patches)

    def __getitem__(self, index: Tensor | slice) -> Locals:
        """Pick some of the images."""
        parts = (self.patches, self.weights, self.descriptors)
        return Locals(*(None if t is None else t[index] for t in parts))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Matched:
    """Structural similarity of pairs."""

    score: Tensor  # (K,)
    mass: Tensor  # (K,): share of the mass that was moved; 1 for methods that move none
    sound: Tensor  # (K,) bool: finite, converged, and no marginal had to be replaced


def match(query: Locals, candidates: Locals, matching: Matching) -> Matched:
    """Compare one image with K others.

    Args:
        query: One image.
        candidates: K images; the number of locations may differ from the query's.
        matching: How.
    """
    similarity = query.patches @ candidates.patches.transpose(1, 2)  # (K, R, Q)
    u, v, replaced = pair_weights(query, candidates, matching)
    if matching.method == "transport":
        moved = transport(similarity, u, v, matching.epsilon, matching.mass)
        sound = moved.converged & ~moved.degenerate & ~replaced & moved.score.isfinite()
        return Matched(moved.score, moved.mass, sound)
    score = (mutual if matching.method == "mutual" else chamfer)(similarity, u, v)
    return Matched(score, torch.ones_like(score), score.isfinite() & ~replaced)


def mutual(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Sum the similarity of locations that are each other's best match, weighted by both sides.

    Args:
        similarity: (..., R, Q).
        u: Weights of the rows, (..., R), sum 1; a location without weight takes no part.
        v: Weights of the columns, (..., Q), sum 1.
    """
    allowed = _on_support(similarity, u, v)
    best_row = allowed == allowed.amax(-1, keepdim=True)
    best_column = allowed == allowed.amax(-2, keepdim=True)
    both = best_row & best_column & allowed.isfinite()
    share = (u[..., :, None] + v[..., None, :]) / 2
    # Locations that tie for the same partner share it.
    ties = torch.maximum(both.sum(-1, keepdim=True), both.sum(-2, keepdim=True)).clamp(min=1)
    return torch.where(both, share * similarity / ties, 0.0).sum((-2, -1))


def chamfer(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Average the best match of every location, over both images; arguments as in `mutual`."""
    allowed = _on_support(similarity, u, v)
    rows = torch.where(u > 0, u * allowed.amax(-1), 0.0).sum(-1)
    columns = torch.where(v > 0, v * allowed.amax(-2), 0.0).sum(-1)
    return (rows + columns) / 2


def _on_support(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    outside = (u <= 0)[..., :, None] | (v <= 0)[..., None, :]
    return similarity.masked_fill(outside, -torch.inf)


def pair_weights(
    query: Locals, candidates: Locals, matching: Matching
) -> tuple[Tensor, Tensor, Tensor]:
    """Give weights u (K, R) and v (K, Q), and where one was zero everywhere, (K,)."""
    u = _own(query).expand(len(candidates), -1)
    v = _own(candidates)
    replaced = torch.zeros(len(candidates), dtype=torch.bool, device=u.device)
    if matching.cross:
        ours, theirs = query.descriptors, candidates.descriptors
        if ours is None or theirs is None:
            raise ModelError("cross-correlation needs descriptors; pass Locals(descriptors=...).")
        u = u * cross_correlation(theirs, query.patches)
        v = v * cross_correlation(ours, candidates.patches)
        replaced = ~positive_cross_correlation(theirs, query.patches)
        replaced = replaced | ~positive_cross_correlation(ours, candidates.patches)
    replaced = replaced | (u.sum(-1) <= 0) | (v.sum(-1) <= 0)
    return normalised(u), normalised(v), replaced


def _own(images: Locals) -> Tensor:
    if images.weights is not None:
        return images.weights.to(images.patches)
    return images.patches.new_ones(images.patches.shape[:2])
