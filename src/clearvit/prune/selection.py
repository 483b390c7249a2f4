"""Which patches of a sequence stay, and who takes the place of the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# How much less alike the pair of the most important patch counts; best of 0.1 to 1 on photos
WORTH = 0.4
FEW = 0.42  # share of patches that may leave in pairs; beyond it half of them have no choice left


class Choice(NamedTuple):
    """A shorter sequence of K' patches made of one of K, in the same order."""

    kept: Tensor  # (B, K') which of the K, ascending
    heirs: Tensor  # (B, K) which of the K' stands for each; the kept stand for themselves


def best(scores: Tensor, count: int) -> Tensor:
    """Pick the `count` best of (B, K) and give them in their old order, (B, count)."""
    return scores.topk(count, dim=1).indices.sort(dim=1).values


def most_similar(key: Tensor, kept: Tensor) -> Choice:
    """Let the kept patch with the most similar key (cosine) stand for each dropped one.

    Args:
        key: Keys of the sequence, (B, K, d).
        kept: Patches that stay, (B, K'), ascending.
    """
    unit = F.normalize(key, dim=-1)
    heirs = (unit @ rows(unit, kept).transpose(1, 2)).argmax(dim=-1)
    return Choice(kept, _themselves(heirs, kept))


def preceding(kept: Tensor, count: int) -> Choice:
    """Let the kept patch before it stand for each dropped one of `count`; needs no keys."""
    places = torch.arange(count, device=kept.device)[:, None]
    return Choice(kept, (kept[:, None] <= places).sum(dim=2).sub(1).clamp(min=0))


def merged(key: Tensor, sizes: Tensor, count: int, scores: Tensor | None = None) -> Choice:
    """Merge the most similar patches, or those that matter least of them, until `count` are left.

    Patches are dealt in turn to two halves. Each of the first half finds its most similar partner
    in the second (cosine of keys), and the closest pairs become one, at the partner's place. One
    round can remove half of the patches; more rounds follow if that is not enough. With scores, a
    patch of the first half that outranks the others is held back as if its pair were less alike.

    Args:
        key: Keys of the sequence, (B, K, d).
        sizes: How many patches each of the K holds already, (B, K).
        count: Patches to be left, K', at least 1.
        scores: How much each of the K matters, (B, K); only their order counts.
    """
    worth = torch.zeros_like(key[..., 0]) if scores is None else WORTH * _rank(scores).to(key.dtype)
    total = _pairs(key, worth, max(count, key.shape[1] // 2))
    while total.kept.shape[1] > count:
        smaller, _ = averaged(key, sizes, total)
        left = worth.gather(1, total.kept)
        again = _pairs(smaller, left, max(count, smaller.shape[1] // 2))
        total = Choice(total.kept.gather(1, again.kept), again.heirs.gather(1, total.heirs))
    return total


def fused(key: Tensor, sizes: Tensor, count: int, scores: Tensor) -> Choice:
    """Merge what is alike and matters little until `count` are left; arguments as of `merged`.

    Where few leave, in pairs. Where many do, the scores say who stays, and each of the others joins
    the one it is most like.
    """
    if in_pairs(key.shape[1], count):
        return merged(key, sizes, count, scores)
    return most_similar(key, best(scores, count))


def in_pairs(before: int, after: int) -> bool:
    """Whether `fused` merges pairs when it leaves `after` patches of `before`."""
    return before - after <= FEW * before


def averaged(x: Tensor, sizes: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
    """Average each group of a choice, weighted by size.

    Args:
        x: One vector per patch, (B, K, C).
        sizes: How many patches each of the K holds, (B, K).
        choice: The groups.

    Returns:
        The averages (B, K', C) and the new sizes (B, K').
    """
    held = torch.zeros_like(choice.kept, dtype=sizes.dtype).scatter_add(1, choice.heirs, sizes)
    target = choice.heirs[..., None].expand(-1, -1, x.shape[-1])
    weighted = x * sizes[..., None].to(x.dtype)
    total = torch.zeros_like(x[:, : held.shape[1]]).scatter_add(1, target, weighted)
    return total / held[..., None].to(x.dtype), held


def rows(x: Tensor, indices: Tensor) -> Tensor:
    """Take rows (B, R) of each image, (B, T, C) -> (B, R, C)."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[-1]))


def _rank(scores: Tensor) -> Tensor:
    """Share of the others that each one outranks, (B, K) -> (B, K) in [0, 1); ties rank alike."""
    return (scores[:, None, :] < scores[:, :, None]).float().mean(dim=-1)


def _pairs(key: Tensor, worth: Tensor, count: int) -> Choice:
    """Do one round of `merged`."""
    length = key.shape[1]
    unit = F.normalize(key, dim=-1)
    similarity, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    giving = (similarity - worth[:, ::2]).topk(length - count, dim=1).indices
    there = torch.ones_like(key[..., 0], dtype=torch.long).scatter(1, 2 * giving, 0)
    kept = best(there.float(), count)  # exactly `count` are 1
    place = there.cumsum(dim=1) - 1
    taking = place.gather(1, 2 * partner.gather(1, giving) + 1)
    return Choice(kept, place.scatter(1, 2 * giving, taking))


def _themselves(heirs: Tensor, kept: Tensor) -> Tensor:
    own = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    return heirs.scatter(1, kept, own)
