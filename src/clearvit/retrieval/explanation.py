"""Why two images are similar: which patch was matched with which, and what that contributed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.matching.patch_matching import LocalFeatures, cosines, pair_weights
from clearvit.retrieval.matching.pooling import Grid

SHOWN = 10  # strongest matches drawn and listed
MATCHED = 0.499  # fraction of its weight that a matched patch places; a chamfer match places a half


@dataclass(frozen=True)
class Match:
    """One patch of the query and the patch of the hit it was matched with, (row, column) each."""

    query: tuple[int, int]
    hit: tuple[int, int]
    mass: float  # of all weight
    similarity: float  # cosine
    contribution: float  # to the patch similarity


@dataclass(frozen=True)
class Explanation:
    """A score taken apart: global + weight x the sum of all contributions."""

    grid: Grid  # of query and hit
    query_weights: Tensor  # (R,): how much each patch counts
    hit_weights: Tensor  # (R,)
    contributions: Tensor  # (R, R): rows of the query; their sum is the patch similarity
    mass: Tensor  # (R, R): weight that was placed on each pair
    similarity: Tensor  # (R, R): cosines
    global_similarity: float
    weight: float  # of the patch similarity in the score; 0: it was not used
    matching: Matching

    @property
    def patch_similarity(self) -> float:
        """Sum of the contributions."""
        return float(self.contributions.sum())

    @property
    def score(self) -> float:
        """What the hit was ranked by."""
        if self.weight == 0:
            return self.global_similarity
        return self.global_similarity + self.weight * self.patch_similarity

    @property
    def query_unmatched(self) -> Tensor:
        """Patches of the query that found no counterpart, (H, W) bool."""
        return _unmatched(self.mass.sum(1), self.query_weights, self.grid)

    @property
    def hit_unmatched(self) -> Tensor:
        """Patches of the hit that found no counterpart, (H, W) bool."""
        return _unmatched(self.mass.sum(0), self.hit_weights, self.grid)

    def strongest(self, count: int = SHOWN) -> list[Match]:
        """List the strongest matches, every patch at most once."""
        columns = self.grid[1]
        listed = []
        for row, column in _one_to_one(self.contributions, count):
            listed.append(
                Match(
                    query=(row // columns, row % columns),
                    hit=(column // columns, column % columns),
                    mass=float(self.mass[row, column]),
                    similarity=float(self.similarity[row, column]),
                    contribution=float(self.contributions[row, column]),
                )
            )
        return listed


def explain_pair(
    query: LocalFeatures,
    hit: LocalFeatures,
    grid: Grid,
    *,
    matching: Matching,
    global_similarity: float,
    weight: float,
) -> Explanation:
    """Take the score of a pair apart.

    Args:
        query: One image.
        hit: One image on the same grid.
        grid: Of both.
        matching: How they are compared.
        global_similarity: Cosine of their descriptors.
        weight: Weight of the patch similarity in the score.
    """
    similarity = cosines(query, hit)[0]
    u, v = (weights[0] for weights in pair_weights(query, hit, matching)[:2])
    mass = _mass(similarity, u, v, matching)
    return Explanation(
        grid=grid,
        query_weights=u,
        hit_weights=v,
        contributions=torch.where(mass > 0, mass * similarity, 0.0),
        mass=mass,
        similarity=similarity,
        global_similarity=global_similarity,
        weight=weight,
        matching=matching,
    )


def _mass(similarity: Tensor, u: Tensor, v: Tensor, matching: Matching) -> Tensor:
    """Weight that the method places on every pair; times similarity it sums to the score."""
    if matching.method == "transport":
        return transport(similarity, u, v, matching.epsilon, matching.mass).plan
    outside = (u <= 0)[:, None] | (v <= 0)[None]
    allowed = similarity.masked_fill(outside, -torch.inf)
    by_row = (allowed == allowed.amax(1, keepdim=True)) & allowed.isfinite()
    by_column = (allowed == allowed.amax(0, keepdim=True)) & allowed.isfinite()
    if matching.method == "mutual":
        both = by_row & by_column
        ties = torch.maximum(both.sum(1, keepdim=True), both.sum(0, keepdim=True)).clamp(min=1)
        return torch.where(both, (u[:, None] + v[None]) / 2 / ties, 0.0)
    rows = by_row * u[:, None] / by_row.sum(1, keepdim=True).clamp(min=1)
    columns = by_column * v[None] / by_column.sum(0, keepdim=True).clamp(min=1)
    return (rows + columns) / 2


def _unmatched(placed: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    return (placed < MATCHED * weights).reshape(grid)


def _one_to_one(values: Tensor, count: int) -> Iterator[tuple[int, int]]:
    """Give the positions of the largest values, each row and column once, positive ones only."""
    left = values.clone()
    for _ in range(min(count, *values.shape)):
        row, column = divmod(int(left.argmax()), values.shape[1])
        if not left[row, column] > 0:
            return
        yield row, column
        left[row], left[:, column] = -torch.inf, -torch.inf
