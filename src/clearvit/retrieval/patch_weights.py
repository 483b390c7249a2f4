"""How much each patch counts in matching: the marginals of optimal transport.

Every function works image by image (or pair by pair) on any leading dimensions and returns weights
that are not negative and sum to 1. Rollout follows Abnar and Zuidema (2020) and Eq. 7 of Zhang,
Liwicki and Cipolla (BMVC 2022); cross-correlation follows Zhao et al. (DIML, ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.capture import prefix_to_patches
from clearvit.errors import ModelError
from clearvit.retrieval.config import Cross

POWERS = {"l1": 1, "l2": 2}
TEMPERATURE = 0.1  # of inverse weights, as the published scripts set it


def uniform_weights(patches: Tensor) -> Tensor:
    """Weigh all patches equally: patches (..., R, C) -> (..., R)."""
    return patches.new_full(patches.shape[:-1], 1 / patches.shape[-2])


def class_attention(attention: Tensor, prefix: int) -> Tensor:
    """Weigh patches by the attention of the class token, mean over heads.

    Args:
        attention: `tokens.attention[-1]` or `tokens.prefix_attention[-1]`, (..., H, rows, P + N),
            class token first.
        prefix: Number of prefix tokens P; registers get no weight.
    """
    if prefix < 1:
        raise ModelError("class attention needs a class token; use uniform weights.")
    return normalize_weights(prefix_to_patches(attention, prefix))


def cross_correlation(other: Tensor, patches: Tensor) -> Tensor:
    """Weigh patches by their positive cosine with the other image as a whole, as DIML does.

    Args:
        other: Unit descriptor of the other image, (..., C).
        patches: Unit vectors of this image, (..., R, C).

    Returns:
        (..., R); uniform where no cosine is positive (`has_positive_correlation` tells).
    """
    return normalize_weights((patches @ other[..., None]).squeeze(-1).clamp(min=0))


def cross_weights(other: Tensor, patches: Tensor, rule: Cross) -> Tensor:
    """Weigh patches by their cosine with the other image as a whole, by a rule of the papers.

    "correlation" is DIML's. The others are of the code of Zhang, Liwicki and Cipolla: "inverse" is
    exp(-max(cosine, 0) / 0.1), "minus" is 1 - max(cosine, 0), "softmax" is the softmax of the
    cosines over the patches.

    Args:
        other: Unit vector of the other image, (..., C).
        patches: Unit vectors of this image, (..., R, C).
        rule: Not "none".
    """
    if rule == "correlation":
        return cross_correlation(other, patches)
    cosines = (patches @ other[..., None]).squeeze(-1)
    if rule == "softmax":
        return cosines.softmax(-1)
    positive = cosines.clamp(min=0)
    if rule == "inverse":
        return normalize_weights((-positive / TEMPERATURE).exp())
    return normalize_weights((1 - positive).clamp(min=0))


def has_positive_correlation(other: Tensor, patches: Tensor) -> Tensor:
    """Tell whether any patch has a positive cosine with the other image, (...) bool.

    Where none has, DIML's weights are undefined.
    """
    return ((patches @ other[..., None]).squeeze(-1) > 0).any(-1)


def remove_artifacts(weights: Tensor, flags: Tensor) -> Tensor:
    """Give flagged tokens no weight; an image that is flagged everywhere keeps its weights.

    Args:
        weights: Weights of the patches, (..., N).
        flags: Artifact tokens, (..., N) bool, from `outlier_mask` or a diagnosis.
    """
    kept = weights.masked_fill(flags, 0.0)
    nothing_left = kept.sum(-1, keepdim=True) <= 0
    return normalize_weights(torch.where(nothing_left, weights, kept))


def rollout(
    attention: Tensor,
    *,
    fuse: Literal["mean", "min"] = "mean",
    norm: Literal["l1", "l2"] = "l2",
    first: Literal["raw", "normalized"] = "raw",
    prefix: int = 1,
    discard: float = 0.0,
) -> Tensor:
    """Weigh patches by attention rolled out through all blocks.

    The defaults are Eq. 7 of the paper; its published code is `official_rollout`.

    Args:
        attention: Softmax attention of the blocks in order, (..., L, H, N, N), prefix first.
        fuse: Mean or minimum over heads.
        norm: Norm of the rows of attention + identity.
        first: "raw" leaves the first block as it is, "normalized" treats it like the others.
        prefix: Number of prefix tokens, class and registers; they are dropped before the product.
        discard: Fraction of the smallest entries of each fused map that is set to 0.

    Returns:
        Mean over all query rows, (..., N - prefix), sum 1.
    """
    if fuse not in ("mean", "min"):
        raise ModelError(f"fuse is '{fuse}'; use mean or min.")
    maps = discard_smallest(attention.mean(-3) if fuse == "mean" else attention.amin(-3), discard)
    maps = maps[..., prefix:, prefix:]
    return normalize_weights(multiply_blocks(maps.unbind(-3), norm=norm, first=first).mean(-2))


def official_rollout(attention: Tensor, *, prefix: int = 1) -> Tensor:
    """Roll out as the published code does: minimum over heads, a tenth discarded; see `rollout`."""
    return rollout(attention, fuse="min", norm="l1", first="normalized", discard=0.1, prefix=prefix)


def discard_smallest(maps: Tensor, fraction: float) -> Tensor:
    """Set the smallest entries of each map (..., n, n) to 0, a fraction of them rounded down."""
    count = int(fraction * maps.shape[-1] * maps.shape[-2])
    if count == 0:
        return maps
    flat = maps.flatten(-2)
    smallest = flat.topk(count, dim=-1, largest=False).indices
    return flat.scatter(-1, smallest, 0.0).view_as(maps)


def multiply_blocks(
    maps: Sequence[Tensor],
    *,
    norm: Literal["l1", "l2"] = "l2",
    first: Literal["raw", "normalized"] = "raw",
) -> Tensor:
    """Multiply the maps (..., n, n) of all blocks, with the skip connection as an identity."""
    if norm not in POWERS:
        raise ModelError(f"norm is '{norm}'; use l1 or l2.")
    if first not in ("raw", "normalized"):
        raise ModelError(f"first is '{first}'; use raw or normalized.")
    one = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    steps = [F.normalize(a + one, p=POWERS[norm], dim=-1) for a in maps]
    product = maps[0] if first == "raw" else steps[0]
    for step in steps[1:]:
        product = step @ product
    return product


def normalize_weights(weights: Tensor) -> Tensor:
    """Divide by the sum over the last dimension; uniform where all weights are 0."""
    total = weights.sum(-1, keepdim=True)
    empty = total <= 0
    even = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(empty, even, weights / torch.where(empty, 1.0, total))
