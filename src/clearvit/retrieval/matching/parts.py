"""Regions that two images share, as "eye, nose, ear" would be: parts.

Patches that have a counterpart in the other image are clustered over both images at once, so one
cluster is one part, wherever it lies. A part counts if both images show it and matches that lead
back join it to itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.matching.mutual_matches import (
    STRONG,
    PatchMatches,
    center_pair,
    find_foreground,
    find_mutual,
    spread_matches,
)
from clearvit.retrieval.matching.pooling import Grid

MOST = 6  # parts; people tell no more colors apart
LINES = 9
APART = 0.12  # of the longer side of the grid: distance between two lines
FEWEST = 0.015  # strong matches as a fraction of the patches, where no collection is known
SMALLEST = 0.004  # fraction of an image that a part covers at least
HOLDS = 0.25  # of all strong matches; a foreground with fewer is not what the images share
ROUNDS = 12  # of k-means
ALIKE = 0.85  # cosine of matches that are of one part
NO_PART = -1


@dataclass(frozen=True)
class PartMatches:
    """Which parts two images share. Maps number the parts from 0, the largest first; -1: none."""

    query_parts: Tensor  # (H, W)
    hit_parts: Tensor  # (H', W')
    query_matched: Tensor  # (H, W) bool: has a counterpart, in a part or in the background
    hit_matched: Tensor  # (H', W') bool
    matches: PatchMatches  # mutual nearest neighbors inside the parts, the strongest first
    lines: PatchMatches  # the strongest of each part, and further ones, that lie apart

    @property
    def count(self) -> int:
        """How many parts; 0 means that nothing of the query is found in the hit."""
        return int(self.query_parts.max()) + 1

    @property
    def grids(self) -> tuple[Grid, Grid]:
        """(H, W) of query and hit."""
        return _shape(self.query_parts), _shape(self.hit_parts)

    def part_of(self, matches: PatchMatches) -> Tensor:
        """Number the part that each match joins, (M,)."""
        return self.query_parts.flatten()[matches.query]

    def strength(self) -> list[float]:
        """Give the mean strength of the matches of each part."""
        parts = self.part_of(self.matches)
        return [float(self.matches.strength[parts == p].mean()) for p in range(self.count)]


def find_parts(
    query: Tensor, hit: Tensor, grids: tuple[Grid, Grid], *, needed: float = FEWEST
) -> PartMatches:
    """Find the parts that two images share.

    Args:
        query: Tokens of one image, (N, C); the finer the grid, the finer the parts.
        hit: Tokens of the other, (M, C).
        grids: (H, W) of both.
        needed: Fraction of the patches that need a strong match, else nothing is shared.
    """
    ours, theirs = center_pair(query.float(), hit.float())
    similarity = ours @ theirs.T
    fronts, strong = _strong_matches(ours, theirs, similarity, grids)
    matched = (similarity.amax(1) >= STRONG, similarity.amax(0) >= STRONG)
    if len(strong) < max(2, round(needed * len(ours))):
        return _nothing(grids, strong)
    inside = [front & near for front, near in zip(fronts, matched, strict=True)]
    centers = _cluster_matches(ours[strong.query] + theirs[strong.hit])
    labels = _assign((ours, theirs), inside, grids, centers)
    shared = _find_shared(labels, strong, len(centers))
    if not shared:
        return _nothing(grids, strong)
    labels = _assign((ours, theirs), inside, grids, centers[shared])  # what was dropped goes over
    joined = labels[0][strong.query] == labels[1][strong.hit]
    within = strong[joined & (labels[0][strong.query] != NO_PART)]
    if len(within) < max(2, round(min(needed, FEWEST) * len(ours))):
        return _nothing(grids, strong)
    maps = [label.reshape(grid) for label, grid in zip(labels, grids, strict=True)]
    seen = [near.reshape(grid) for near, grid in zip(matched, grids, strict=True)]
    # Every part gets its best line first.
    in_turn = within[_interleave_parts(labels[0][within.query])]
    lines = spread_matches(in_turn, grids[0], LINES, APART * max(grids[0]))
    return PartMatches(maps[0], maps[1], seen[0], seen[1], within, lines)


def _strong_matches(
    ours: Tensor, theirs: Tensor, similarity: Tensor, grids: tuple[Grid, Grid]
) -> tuple[tuple[Tensor, Tensor], PatchMatches]:
    """Find the strong matches, in the foreground if most of them lie there, and where to look."""
    fronts = find_foreground(ours, theirs, grids)
    everywhere = find_mutual(similarity, grids[0])
    inside = find_mutual(similarity, grids[0], rows=fronts[0], columns=fronts[1])
    everywhere, inside = (found[found.strength >= STRONG] for found in (everywhere, inside))
    if len(inside) >= HOLDS * len(everywhere):
        return fronts, inside
    return (torch.ones_like(fronts[0]), torch.ones_like(fronts[1])), everywhere


def _cluster_matches(pairs: Tensor) -> Tensor:
    """Cluster matched pairs (K, C) by spherical k-means; unit centers, (P, C).

    Clusters are of pairs, so each is something that both images show.
    """
    pairs = F.normalize(pairs, dim=1)
    centers = _farthest(pairs, MOST)
    for _ in range(ROUNDS):
        nearest = (pairs @ centers.T).argmax(1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, pairs)
        empty = sums.norm(dim=1, keepdim=True) == 0
        centers = torch.where(empty, centers, F.normalize(sums, dim=1))
    return centers


def _assign(
    tokens: tuple[Tensor, Tensor], inside: list[Tensor], grids: tuple[Grid, Grid], centers: Tensor
) -> list[Tensor]:
    """Number the part of each patch of both images, (N,) and (M,); -1 outside.

    The likeness to each center is averaged over neighbors first, so regions have few holes.
    """
    labels = []
    for one, keep, grid in zip(tokens, inside, grids, strict=True):
        likeness = _smooth((one @ centers.T).T.unflatten(1, grid)).flatten(1)
        labels.append(torch.where(keep, likeness.argmax(0), NO_PART))
    return labels


def _find_shared(labels: list[Tensor], strong: PatchMatches, parts: int) -> list[int]:
    """List the parts that are not tiny in both images and joined by a match, the largest first."""
    same = labels[0][strong.query] == labels[1][strong.hit]
    sizes = []
    for part in range(parts):
        joined = int((same & (labels[0][strong.query] == part)).sum())
        areas = [float((label == part).double().mean()) for label in labels]
        if joined and min(areas) >= SMALLEST:
            sizes.append((-sum(areas), part))
    return [part for _, part in sorted(sizes)]


def _interleave_parts(parts: Tensor) -> Tensor:
    """Order matches (M,) so that the parts take turns, each with its strongest match first."""
    same = parts[:, None] == parts[None]
    place = same.tril(-1).sum(1)  # among the matches of its part
    return place.argsort(stable=True)


def _farthest(vectors: Tensor, count: int) -> Tensor:
    """Pick unit vectors (K, C) that differ most, beginning with the first; none twice."""
    chosen = [0]
    nearest = vectors @ vectors[0]
    while len(chosen) < count and float(nearest.min()) < ALIKE:
        chosen.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, vectors @ vectors[chosen[-1]])
    return vectors[chosen]


def _smooth(maps: Tensor) -> Tensor:
    """Average each cell with its neighbors, (P, H, W)."""
    padded = F.pad(maps[None], (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(padded, 3, stride=1)[0]


def _nothing(grids: tuple[Grid, Grid], strong: PatchMatches) -> PartMatches:
    maps = [torch.full(grid, NO_PART) for grid in grids]
    none = [torch.zeros(grid, dtype=torch.bool) for grid in grids]
    return PartMatches(maps[0], maps[1], none[0], none[1], strong[:0], strong[:0])


def _shape(parts: Tensor) -> Grid:
    return parts.shape[0], parts.shape[1]
