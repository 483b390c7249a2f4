"""Patches of two images that are each other's nearest neighbor.

Tokens of two images share a large mean, and a nearest neighbor exists even where nothing matches.
So the mean of the pair is taken away first: patches of images that have nothing in common then
point away from each other. A match must be strong, and it must lead back to where it came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.matching.pooling import Grid

STRONG = 0.45  # centered cosine from which two patches count as the same thing
RETURN = 1.5  # patches that the way back may miss the start by: what lies beside it
CENTER = 0.25  # fraction of the middle of an image that a foreground covers at least,
CENTERED = 1.5  # and how many times the fraction of the border that it covers


@dataclass(frozen=True)
class PatchMatches:
    """Matches of M pairs of patches, the strongest first."""

    query: Tensor  # (M,): patch of the query
    hit: Tensor  # (M,): patch of the hit
    strength: Tensor  # (M,): cosine of the two after the mean of the pair was taken away

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, index: Tensor | slice) -> PatchMatches:
        """Pick some of the matches."""
        return PatchMatches(self.query[index], self.hit[index], self.strength[index])


def center_pair(query: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    """Take the mean of both images away from tokens (N, C) and (M, C); unit norm."""
    mean = torch.cat([query, hit]).mean(0)
    return F.normalize(query - mean, dim=1), F.normalize(hit - mean, dim=1)


def find_mutual(
    similarity: Tensor, grid: Grid, *, rows: Tensor | None = None, columns: Tensor | None = None
) -> PatchMatches:
    """Match every patch of the query with its nearest in the hit that leads back to it.

    Args:
        similarity: Cosines of centered tokens, (N, M).
        grid: (H, W) of the query.
        rows: Patches of the query that may match, (N,) bool.
        columns: Patches of the hit that may match, (M,) bool.
    """
    if rows is not None:
        similarity = similarity.masked_fill(~rows[:, None], -torch.inf)
    if columns is not None:
        similarity = similarity.masked_fill(~columns[None], -torch.inf)
    strength, nearest = similarity.max(1)
    back = similarity.argmax(0)[nearest]
    here = torch.arange(len(similarity), device=similarity.device)
    down, across = back // grid[1] - here // grid[1], back % grid[1] - here % grid[1]
    returns = (down.square() + across.square()).float().sqrt() <= RETURN
    found = (returns & strength.isfinite()).nonzero().squeeze(1)
    order = strength[found].argsort(descending=True, stable=True)
    found = found[order]
    return PatchMatches(found, nearest[found], strength[found])


def find_foreground(query: Tensor, hit: Tensor, grids: tuple[Grid, Grid]) -> tuple[Tensor, Tensor]:
    """Find what stands out from the border of both images, (N,) and (M,) bool.

    The first principal component of what varies inside the images cuts both in two; the
    foreground is the side that covers less of the border. Where that is no clear object in both
    images, as in a street or a room, everything is foreground.

    Args:
        query: Centered tokens, (N, C).
        hit: Centered tokens, (M, C).
        grids: (H, W) of both.
    """
    own = [tokens.double() - tokens.double().mean(0) for tokens in (query, hit)]
    both = torch.cat(own)
    component = torch.linalg.eigh(both.T @ both).eigenvectors[:, -1]
    sides = [
        (tokens @ component > 0).reshape(grid) for tokens, grid in zip(own, grids, strict=True)
    ]
    if sum(_border(side).double().mean() for side in sides) > 1:
        sides = [~side for side in sides]
    clear = all(_is_centered(side) for side in sides)
    one, other = (side.flatten() if clear else torch.ones_like(side).flatten() for side in sides)
    return one, other


def spread_matches(matches: PatchMatches, grid: Grid, count: int, distance: float) -> PatchMatches:
    """Pick the strongest matches whose patches of the query lie apart.

    Args:
        matches: The strongest first.
        grid: (H, W) of the query.
        count: How many at most.
        distance: Between any two, in patches.
    """
    places = torch.stack([matches.query // grid[1], matches.query % grid[1]], 1).double()
    chosen: list[int] = []
    for number, place in enumerate(places):
        if len(chosen) == count:
            break
        if not chosen or float((places[chosen] - place).norm(dim=1).min()) >= distance:
            chosen.append(number)
    return matches[torch.tensor(chosen, dtype=torch.long)]


def _is_centered(side: Tensor) -> bool:
    """Tell whether a map (H, W) covers the middle of an image rather than its border."""
    height, width = side.shape
    middle = side[height // 4 : height - height // 4, width // 4 : width - width // 4]
    covered, around = float(middle.double().mean()), float(_border(side).double().mean())
    return covered >= CENTER and covered >= CENTERED * around


def _border(side: Tensor) -> Tensor:
    """Give the outermost cells of a map (H, W)."""
    return torch.cat([side[0], side[-1], side[1:-1, 0], side[1:-1, -1]])
