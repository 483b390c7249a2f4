"""How much each patch counts: the marginals of transport.

Every function works image by image (or pair by pair) on any leading dimensions and returns weights
that are not negative and sum to 1. Rollout follows Abnar and Zuidema (2020) and Eq. 7 of Zhang,
Liwicki and Cipolla (BMVC 2022); cross-correlation follows Zhao et al. (DIML, ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError, closest
from clearvit.retrieval.pooling import Grid, pool

Fuse = Literal["mean", "min", "max"]
Norm = Literal["l1", "l2"]
First = Literal["raw", "normalised"]
Rule = Literal["relu", "inverse", "minus", "softmax"]

FUSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda a: a.mean(-3),
    "min": lambda a: a.amin(-3),
    "max": lambda a: a.amax(-3),
}
POWERS = {"l1": 1, "l2": 2}
RULES = ("relu", "inverse", "minus", "softmax")


def uniform(patches: Tensor) -> Tensor:
    """Weigh all locations alike: patches (..., R, C) -> (..., R)."""
    return patches.new_full(patches.shape[:-1], 1 / patches.shape[-2])


def class_attention(attention: Tensor, prefix: int) -> Tensor:
    """Weigh patches by what the class token looks at, mean over heads.

    Args:
        attention: `tokens.attention[-1]` or `tokens.prefix_attention[-1]`, (..., H, rows, P + N),
            class token first.
        prefix: Number of prefix tokens P; registers get no weight.
    """
    if prefix < 1:
        raise ModelError("class attention needs a class token; use uniform or cross_correlation.")
    return normalised(attention[..., 0, prefix:].mean(-2))


def cross_correlation(
    other: Tensor, patches: Tensor, *, rule: Rule = "relu", temperature: float = 0.1
) -> Tensor:
    """Weigh locations by how well they agree with the other image as a whole.

    Args:
        other: Unit descriptor of the other image, (..., C).
        patches: Unit vectors of this image, (..., R, C).
        rule: With c the cosines: "relu" max(c, 0), DIML's; "inverse" exp(-max(c, 0) /
            temperature); "minus" 1 - max(c, 0); "softmax" of c.
        temperature: Of "inverse".

    Returns:
        (..., R); uniform where every weight would be 0 (`positive_cross_correlation` tells).
    """
    if rule not in RULES:
        raise ModelError(f"rule is '{rule}'; use {', '.join(RULES)}.{closest(rule, RULES)}")
    cosines = (patches @ other[..., None]).squeeze(-1)
    if rule == "softmax":
        return cosines.softmax(-1)
    positive = cosines.clamp(min=0)
    if rule == "inverse":
        return normalised((-positive / temperature).exp())
    return normalised(positive if rule == "relu" else (1 - positive).clamp(min=0))


def positive_cross_correlation(other: Tensor, patches: Tensor) -> Tensor:
    """Tell whether any location agrees with the other image, (...) bool; else DIML is undefined."""
    return ((patches @ other[..., None]).squeeze(-1) > 0).any(-1)


def flag_artifacts(norms: Tensor, *, cutoff: float = 2.0) -> Tensor:
    """Mark the tokens that are far longer than the median of their image.

    Args:
        norms: Token norms before the final norm, (..., N): `tokens(..., norm=False).norms`.
        cutoff: Times the median; `diagnose` measures it for a model.
    """
    return norms >= cutoff * norms.median(dim=-1, keepdim=True).values


def without_artifacts(marginal: Tensor, flags: Tensor) -> Tensor:
    """Give flagged tokens no weight; an image that is flagged everywhere keeps its weights.

    Args:
        marginal: Weights (..., N).
        flags: Artifact tokens, (..., N) bool, from `flag_artifacts` or a diagnosis.
    """
    kept = marginal.masked_fill(flags, 0.0)
    nothing_left = kept.sum(-1, keepdim=True) <= 0
    return normalised(torch.where(nothing_left, marginal, kept))


def rollout(
    attention: Tensor,
    *,
    fuse: Fuse = "mean",
    norm: Norm = "l2",
    first: First = "raw",
    prefix: int = 1,
    discard: float = 0.0,
    through_prefix: bool = False,
) -> Tensor:
    """Weigh patches by attention rolled out through all blocks.

    The defaults are Eq. 7 of the paper; its code is `fuse="min", norm="l1", first="normalised",
    discard=0.1`.

    Args:
        attention: Softmax attention of the blocks in order, (..., L, H, N, N), prefix first.
        fuse: Over heads.
        norm: Of the rows of attention + identity.
        first: "raw" leaves the first block as it is, "normalised" treats it like the others.
        prefix: Number of prefix tokens, class and registers.
        discard: Share of the smallest entries of each fused map that is set to 0.
        through_prefix: Let attention flow through the prefix tokens, instead of dropping them
            before the product.

    Returns:
        Mean over all query rows, (..., N - prefix), sum 1.
    """
    maps = discarded(fused(attention, fuse), discard)
    if not through_prefix:
        maps = maps[..., prefix:, prefix:]
    whole = joint(maps.unbind(-3), norm=norm, first=first)
    mean = whole.mean(-2)
    return normalised(mean[..., prefix:] if through_prefix else mean)


def official_rollout(attention: Tensor, *, prefix: int = 1) -> Tensor:
    """Roll out as the code of the paper does: least head, a tenth discarded; see `rollout`."""
    return rollout(attention, fuse="min", norm="l1", first="normalised", discard=0.1, prefix=prefix)


def class_rollout(attention: Tensor, *, prefix: int = 1) -> Tensor:
    """Roll out as Abnar and Zuidema do: the row of the class token over the patches, (..., N - P).

    Args:
        attention: (..., L, H, N, N), class token first.
        prefix: Number of prefix tokens.
    """
    whole = joint(fused(attention, "mean").unbind(-3), norm="l1", first="normalised")
    return normalised(whole[..., 0, prefix:])


def fused(attention: Tensor, fuse: Fuse = "mean") -> Tensor:
    """Fuse the heads, (..., H, N, N) -> (..., N, N)."""
    if fuse not in FUSES:
        raise ModelError(f"fuse is '{fuse}'; use {', '.join(FUSES)}.{closest(fuse, FUSES)}")
    return FUSES[fuse](attention)


def discarded(maps: Tensor, share: float) -> Tensor:
    """Set the smallest entries of each map to 0, a share of them rounded down."""
    count = int(share * maps.shape[-1] * maps.shape[-2])
    if count == 0:
        return maps
    flat = maps.flatten(-2)
    smallest = flat.topk(count, dim=-1, largest=False).indices
    return flat.scatter(-1, smallest, 0.0).view_as(maps)


def pooled_attention(maps: Tensor, grid: Grid, to: Grid) -> Tensor:
    """Average attention between patches to a coarser grid, keys first: (..., N, N) -> (..., n, n).

    For backbones whose stages have different grids; windows overlap as in the published code.
    """
    keys = pool(maps.transpose(-1, -2), grid, to, rule="adaptive").transpose(-1, -2)
    return pool(keys, grid, to, rule="adaptive")


def joint(maps: Sequence[Tensor], *, norm: Norm = "l2", first: First = "raw") -> Tensor:
    """Multiply the maps (..., n, n) of all blocks, with the skip connection as an identity."""
    if norm not in POWERS:
        raise ModelError(f"norm is '{norm}'; use l1 or l2.")
    if first not in ("raw", "normalised"):
        raise ModelError(f"first is '{first}'; use raw or normalised.")
    one = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    steps = [F.normalize(a + one, p=POWERS[norm], dim=-1) for a in maps]
    whole = maps[0] if first == "raw" else steps[0]
    for step in steps[1:]:
        whole = step @ whole
    return whole


def normalised(weights: Tensor) -> Tensor:
    """Divide by the sum over the last dimension; uniform where all weights are 0."""
    total = weights.sum(-1, keepdim=True)
    empty = total <= 0
    even = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(empty, even, weights / torch.where(empty, 1.0, total))
