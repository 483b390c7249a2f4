"""Why two images are similar: which parts they share, and what each contributed to the score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.matching.parts import PartMatches
from clearvit.retrieval.matching.patch_matching import LocalFeatures, cosines, pair_weights
from clearvit.retrieval.matching.pooling import Grid, pool_patches

NOT_FOUND = "Nothing of the query is found here."


@dataclass(frozen=True)
class SharedPart:
    """One part that both images show."""

    number: int  # from 1; the largest first
    query_area: float  # fraction of the query
    hit_area: float  # fraction of the hit
    matches: int  # mutual nearest neighbors inside it
    strength: float  # their mean cosine, after the mean of both images was taken away
    contribution: float  # to the patch similarity


@dataclass(frozen=True)
class Match:
    """Two patches that are each other's nearest neighbor."""

    part: int  # from 1
    query: tuple[float, float]  # center as x, y from 0 to 1
    hit: tuple[float, float]
    strength: float  # cosine, after the mean of both images was taken away


@dataclass(frozen=True)
class Explanation:
    """A score taken apart: global + weight x the sum of all contributions."""

    grid: Grid  # of the patches that were compared for the score, of query and hit
    query_weights: Tensor  # (R,): how much each patch counts
    hit_weights: Tensor  # (R,)
    contributions: Tensor  # (R, R): rows of the query; their sum is the patch similarity
    mass: Tensor  # (R, R): weight that was placed on each pair
    global_similarity: float
    weight: float  # of the patch similarity in the score; 0: it was not used
    matching: Matching
    parts: PartMatches | None = None  # found on a finer grid than that of the score

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
    def found(self) -> bool:
        """Whether the images share any part."""
        return self.parts is not None and self.parts.count > 0

    def list_parts(self) -> list[SharedPart]:
        """List the parts that both images show.

        A pair of patches adds to a part as far as both of its patches lie in that part, so the
        contributions of all parts and what lies outside or between them sum to the patch
        similarity.
        """
        if self.parts is None or not self.parts.count:
            return []
        parts, strength = self.parts, self.parts.strength()
        joined = parts.part_of(parts.matches)
        ours = _cover(parts.query_parts, parts.count, self.grid)
        theirs = _cover(parts.hit_parts, parts.count, self.grid)
        added = ((ours @ self.contributions.double()) * theirs).sum(1)
        return [
            SharedPart(
                number=number + 1,
                query_area=float((parts.query_parts == number).double().mean()),
                hit_area=float((parts.hit_parts == number).double().mean()),
                matches=int((joined == number).sum()),
                strength=strength[number],
                contribution=float(added[number]),
            )
            for number in range(parts.count)
        ]

    def list_lines(self) -> list[Match]:
        """List the matches that are drawn as lines: the strongest that lie apart."""
        if self.parts is None:
            return []
        lines, (ours, theirs) = self.parts.lines, self.parts.grids
        rows = zip(
            self.parts.part_of(lines).tolist(),
            lines.query.tolist(),
            lines.hit.tolist(),
            lines.strength.tolist(),
            strict=True,
        )
        return [
            Match(part + 1, _center(query, ours), _center(hit, theirs), strength)
            for part, query, hit, strength in rows
        ]


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
        global_similarity=global_similarity,
        weight=weight,
        matching=matching,
    )


def _mass(similarity: Tensor, u: Tensor, v: Tensor, matching: Matching) -> Tensor:
    """Weight that the method places on every pair; times similarity it sums to the score."""
    if matching.method == "transport":
        moved = transport(similarity, u, v, matching.epsilon, matching.mass)
        return moved.complete_plan if matching.mass == "auto" else moved.plan
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


def _center(cell: int, grid: Grid) -> tuple[float, float]:
    """Give the center of a cell as x, y from 0 to 1."""
    return (cell % grid[1] + 0.5) / grid[1], (cell // grid[1] + 0.5) / grid[0]


def _cover(parts: Tensor, count: int, grid: Grid) -> Tensor:
    """Give the fraction of each cell of a coarser grid that each part covers, (P, R)."""
    masks = torch.stack([parts == number for number in range(count)]).flatten(1).double()
    shape = (parts.shape[0], parts.shape[1])
    return pool_patches(masks[..., None], shape, grid).squeeze(-1)
