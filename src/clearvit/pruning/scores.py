"""How much each patch matters, from what the block before a stage computed anyway.

All scores are (B, K) for the K patches in the sequence, higher is kept. Prefix tokens are never
ranked.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from clearvit.backbones.capture import Kind, attention_weights
from clearvit.pruning.config import Scorer


def captures_for(scorer: Scorer | None, *, class_token: bool) -> tuple[Kind, ...]:
    """Name what to capture from the block before a stage; None stands for predictors."""
    if scorer in ("class", "fuse"):
        return ("prefix_attention",) if class_token else ("query", "key")
    return ("key",) if scorer == "merge" else ()


def mean_attention(query: Tensor, key: Tensor, scale: float, prefix: int) -> Tensor:
    """Attention of the mean query of the patches, for networks that pool instead of a class token.

    Args:
        query: (B, heads, P + K, d).
        key: (B, heads, P + K, d).
        scale: Factor of the attention product.
        prefix: Number of prefix tokens P.
    """
    pooled = query[:, :, prefix:].mean(dim=2, keepdim=True)
    return attention_weights(pooled, key, scale)[:, :, 0, prefix:].mean(dim=1)


def random_scores(positions: Tensor, count: int, seed: int) -> Tensor:
    """Random numbers that belong to grid positions: an image does not depend on its batch.

    Args:
        positions: Indices of the K patches on the grid, (B, K).
        count: Patches N of the whole grid.
        seed: Of the numbers.
    """
    return torch.tensor(_random_numbers(count, seed), device=positions.device)[positions]


@functools.cache
def _random_numbers(count: int, seed: int) -> list[float]:
    """Plain numbers, made once: an exported graph holds them as constants."""
    numbers: list[float] = torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return numbers
