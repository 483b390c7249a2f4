"""How similar two images are patch by patch: transport, and simpler methods to compare it with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.patch_weights import (
    cross_weights,
    has_positive_correlation,
    normalize_weights,
)


@dataclass(frozen=True)
class LocalFeatures:
    """Patch vectors of B images, ready to be matched."""

    patches: Tensor  # (B, R, C), unit norm; half precision is matched in single precision
    weights: Tensor | None = None  # (B, R): how much each patch counts; uniform if None
    descriptors: Tensor | None = None  # (B, C), unit norm; only cross-correlation needs them

    def __len__(self) -> int:
        """How many images."""
        return len(self.patches)

    def __getitem__(self, index: Tensor | slice) -> LocalFeatures:
        """Pick some of the images."""
        weights = None if self.weights is None else self.weights[index]
        descriptors = None if self.descriptors is None else self.descriptors[index]
        return LocalFeatures(self.patches[index], weights, descriptors)


@dataclass(frozen=True)
class MatchResult:
    """Patch similarity of K pairs."""

    score: Tensor  # (K,)
    mass: Tensor  # (K,): fraction of the mass that was moved; 1 for methods that move none
    valid: Tensor  # (K,) bool: finite, converged, and no weights had to be replaced


def match(query: LocalFeatures, candidates: LocalFeatures, matching: Matching) -> MatchResult:
    """Compare one image with K others.

    Args:
        query: One image.
        candidates: K images; the number of locations may differ from the query's.
        matching: How.
    """
    similarity = cosines(query, candidates)
    u, v, replaced = pair_weights(query, candidates, matching)
    if matching.method == "transport":
        similarity = similarity.contiguous()  # the solver reads it many times
        moved = transport(similarity, u, v, matching.epsilon, matching.mass)
        score = moved.score
        if matching.mass == "auto":  # pairs of different mass must be comparable
            score = (moved.complete_plan * similarity).sum((-2, -1))
        valid = moved.converged & ~moved.degenerate & ~replaced & score.isfinite()
        return MatchResult(score, moved.mass, valid)
    score = (mutual if matching.method == "mutual" else chamfer)(similarity, u, v)
    return MatchResult(score, torch.ones_like(score), score.isfinite() & ~replaced)


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
    both_weights = (u[..., :, None] + v[..., None, :]) / 2
    # Locations that tie for the same partner share it.
    ties = torch.maximum(both.sum(-1, keepdim=True), both.sum(-2, keepdim=True)).clamp(min=1)
    return torch.where(both, both_weights * similarity / ties, 0.0).sum((-2, -1))


def chamfer(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Average the best match of every location, over both images; arguments as in `mutual`."""
    allowed = _on_support(similarity, u, v)
    rows = torch.where(u > 0, u * allowed.amax(-1), 0.0).sum(-1)
    columns = torch.where(v > 0, v * allowed.amax(-2), 0.0).sum(-1)
    return (rows + columns) / 2


def _on_support(similarity: Tensor, u: Tensor, v: Tensor) -> Tensor:
    if bool((u > 0).all() and (v > 0).all()):
        return similarity
    outside = (u <= 0)[..., :, None] | (v <= 0)[..., None, :]
    return similarity.masked_fill(outside, -torch.inf)


def cosines(query: LocalFeatures, candidates: LocalFeatures) -> Tensor:
    """Cosines of the patches of one image with those of K others, (K, R, Q).

    One matrix product for all K, which takes two thirds of the time of K small ones.
    """
    others = _patches(candidates)
    together = _patches(query)[0] @ others.flatten(0, 1).T  # (R, K * Q)
    return together.reshape(-1, *others.shape[:2]).transpose(0, 1)


def pair_weights(
    query: LocalFeatures, candidates: LocalFeatures, matching: Matching
) -> tuple[Tensor, Tensor, Tensor]:
    """Give weights u (K, R) and v (K, Q), and where one was zero everywhere, (K,)."""
    u = _own_weights(query).expand(len(candidates), -1)
    v = _own_weights(candidates)
    replaced = torch.zeros(len(candidates), dtype=torch.bool, device=u.device)
    if matching.cross != "none":
        ours, theirs = _whole(query, matching), _whole(candidates, matching)
        own, other = _patches(query), _patches(candidates)
        u = u * cross_weights(theirs, own, matching.cross)
        v = v * cross_weights(ours, other, matching.cross)
        if matching.cross == "correlation":
            replaced = ~(
                has_positive_correlation(theirs, own) & has_positive_correlation(ours, other)
            )
    replaced = replaced | (u.sum(-1) <= 0) | (v.sum(-1) <= 0)
    return normalize_weights(u), normalize_weights(v), replaced


def _whole(images: LocalFeatures, matching: Matching) -> Tensor:
    """Give one unit vector for each image as a whole, (B, C)."""
    if matching.cross_mean:
        return F.normalize(_patches(images).mean(1), dim=-1)
    if images.descriptors is None:
        raise ModelError(
            "cross weights need descriptors in the space of the patches; pass"
            " LocalFeatures(descriptors=...), or use cross_mean=True."
        )
    return images.descriptors


def _patches(images: LocalFeatures) -> Tensor:
    whole = images.patches.dtype in (torch.float32, torch.float64)
    return images.patches if whole else images.patches.float()


def _own_weights(images: LocalFeatures) -> Tensor:
    patches = _patches(images)
    if images.weights is not None:
        return images.weights.to(patches)
    return patches.new_ones(patches.shape[:2])
