"""Which patches of a sequence are kept, and which kept patch represents each of the others."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.options import Size

# How much the similarity of the highest-scored patch's pair is lowered; best of 0.1 to 1 on photos
SCORE_WEIGHT = 0.4
# Largest fraction removed in pairs; beyond it half of the patches would have no choice left
PAIR_LIMIT = 0.42


class Sides(NamedTuple):
    """Two sets of patches between which pairs are sought; together they are all K."""

    first: Tensor  # (K - K // 2,) patches that may be merged into one of the second
    second: Tensor  # (K // 2,)


class Choice(NamedTuple):
    """A shorter sequence of K' patches made of one of K, in the same order."""

    kept: Tensor  # (B, K') which of the K, ascending
    assignment: Tensor  # (B, K) which of the K' represents each; kept ones represent themselves


def select_top(scores: Tensor, count: int) -> Tensor:
    """Pick the `count` highest of (B, K) and give their indices in ascending order, (B, count)."""
    highest = scores.topk(count, dim=1).indices
    # not sort(), which graphs hold as a top-k of a number that is not written in the file
    return highest.topk(count, dim=1, largest=False).values


def assign_most_similar(key: Tensor, kept: Tensor) -> Choice:
    """Represent each dropped patch by the kept one with the most similar key (cosine).

    Args:
        key: Keys of the sequence, (B, K, d).
        kept: Patches that are kept, (B, K'), ascending.
    """
    unit = F.normalize(key, dim=-1)
    nearest = (unit @ gather_rows(unit, kept).transpose(1, 2)).argmax(dim=-1)
    own = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    return Choice(kept, nearest.scatter(1, kept, own))


def assign_preceding(kept: Tensor, count: int) -> Choice:
    """Represent each dropped one of `count` patches by the kept one before it; needs no keys."""
    indices = torch.arange(count, device=kept.device)[:, None]
    return Choice(kept, (kept[:, None] <= indices).sum(dim=2).sub(1).clamp(min=0))


def deal_alternately(count: int, device: torch.device) -> Sides:
    """Deal a sequence of `count` patches to two sides in turn."""
    indices = torch.arange(count, device=device)
    return Sides(indices[::2], indices[1::2])


def deal_checkerboard(grid: Size, device: torch.device) -> Sides:
    """Deal a whole grid (H, W) so that the neighbors of a patch are all on the other side.

    Dealt alternately, a grid of even width has the same side all along a column, and pairs lie in
    rows only.
    """
    first, second = (
        torch.tensor(side, dtype=torch.long, device=device) for side in _checkerboard(*grid)
    )
    return Sides(first, second)


@functools.cache
def _checkerboard(height: int, width: int) -> tuple[list[int], list[int]]:
    """Plain numbers, made once: an exported graph holds them as constants."""
    sides: tuple[list[int], list[int]] = ([], [])
    for index in range(height * width):
        sides[(index // width + index % width) % 2].append(index)
    return sides


def match_pairs(
    key: Tensor,
    sizes: Tensor,
    count: int,
    scores: Tensor | None = None,
    sides: Sides | None = None,
) -> Choice:
    """Choose the most similar patches for merging, by bipartite soft matching (Bolya et al., 2023).

    Patches are dealt to two sides. Each of the first side finds its most similar partner in the
    second (cosine of keys), and the closest pairs become one, at the partner's position. One round
    removes at most half of the patches; more rounds follow if that is not enough. With scores, a
    high-scored patch of the first side counts as less similar to its partner.

    Args:
        key: Keys of the sequence, (B, K, d).
        sizes: How many patches each of the K holds already, (B, K).
        count: Patches to be left, K', at least 1.
        scores: How much each of the K matters, (B, K); only their order counts.
        sides: Who may be merged into whom in the first round; dealt alternately by default.
    """
    penalty = torch.zeros_like(key[..., 0])
    if scores is not None:
        penalty = SCORE_WEIGHT * _rank(scores).to(key.dtype)
    total = _match_once(key, penalty, max(count, key.shape[1] // 2), sides)
    while total.kept.shape[1] > count:
        smaller, _ = merge_tokens(key, sizes, total)
        left = penalty.gather(1, total.kept)
        again = _match_once(smaller, left, max(count, smaller.shape[1] // 2))
        kept = total.kept.gather(1, again.kept)
        total = Choice(kept, again.assignment.gather(1, total.assignment))
    return total


def match_scored(
    key: Tensor, sizes: Tensor, count: int, scores: Tensor, sides: Sides | None = None
) -> Choice:
    """Choose similar patches with low scores for merging; arguments as of `match_pairs`.

    Where few are removed, in pairs. Where many are, the scores decide which are kept, and each of
    the others is merged into the one it is most similar to.
    """
    if removes_pairs(key.shape[1], count):
        return match_pairs(key, sizes, count, scores, sides)
    return assign_most_similar(key, select_top(scores, count))


def removes_pairs(before: int, after: int) -> bool:
    """Tell whether `match_scored` merges in pairs when it leaves `after` patches of `before`."""
    return before - after <= PAIR_LIMIT * before


def merge_tokens(x: Tensor, sizes: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
    """Average each group of a choice, weighted by size.

    Args:
        x: One vector per patch, (B, K, C).
        sizes: How many patches each of the K holds, (B, K).
        choice: The groups.

    Returns:
        The averages (B, K', C) and the new sizes (B, K').
    """
    batch, _, width = x.shape  # not len(x), which an exported graph would hold as a constant
    count = choice.kept.shape[1]
    target = number_rows(choice.assignment, count)
    merged_sizes = sizes.new_zeros(batch * count).scatter_add(0, target, sizes.flatten())
    weighted = (x * sizes[..., None].to(x.dtype)).flatten(0, 1)
    # along the first dimension torch adds whole rows, else value by value
    total = x.new_zeros(batch * count, width).scatter_add(
        0, target[:, None].expand(-1, width), weighted
    )
    means = total / merged_sizes[:, None].to(x.dtype)
    return means.view(batch, count, width), merged_sizes.view(batch, count)


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Take rows (B, R) of each image, (B, T, C) -> (B, R, C).

    Rows of all images are numbered through, so that each is copied whole: exported graphs get one
    plain gather instead of one that looks up every value.
    """
    batch, length, width = x.shape
    rows = x.reshape(batch * length, width).index_select(0, number_rows(indices, length))
    return rows.view(batch, indices.shape[1], width)


def number_rows(indices: Tensor, length: int) -> Tensor:
    """Number rows (B, R) of images with `length` rows each through all images, (B R,)."""
    first = torch.arange(indices.shape[0], device=indices.device)[:, None] * length
    return (indices + first).flatten()


def _rank(scores: Tensor) -> Tensor:
    """Fraction of the others that each one outranks, (B, K) -> (B, K) in [0, 1)."""
    return (scores[:, None, :] < scores[:, :, None]).float().mean(dim=-1)


def _match_once(key: Tensor, penalty: Tensor, count: int, sides: Sides | None = None) -> Choice:
    """Do one round of bipartite soft matching."""
    length = key.shape[1]
    first, second = sides or deal_alternately(length, key.device)
    unit = F.normalize(key, dim=-1)
    one, other = unit.index_select(1, first), unit.index_select(1, second)
    similarity, partner = (one @ other.transpose(1, 2)).max(dim=-1)
    held_back = penalty.index_select(1, first)
    closest = (similarity - held_back).topk(length - count, dim=1).indices
    removed = first[closest]
    stays = torch.ones_like(key[..., 0], dtype=torch.long).scatter(1, removed, 0)
    kept = select_top(stays.float(), count)  # exactly `count` are 1
    index = stays.cumsum(dim=1) - 1
    target = index.gather(1, second[partner.gather(1, closest)])
    return Choice(kept, index.scatter(1, removed, target))
