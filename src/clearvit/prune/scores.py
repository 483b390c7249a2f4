"""How much each patch matters, from what the block before a stage computed anyway.

All scores are (B, K) for the K patches in the sequence, higher is kept. Ranking never looks at
prefix tokens.
"""

from __future__ import annotations

import functools
from typing import Literal, get_args

import torch
from torch import Tensor

from clearvit.backbones.capture import Kind, scores

Scorer = Literal["class", "fuse", "merge", "key-norm", "value-norm", "random"]
"""Which patches stay, without training.

- `class`: those the class token attends to; the rest is dropped. Best for the class token.
- `fuse`: as `merge`, but what the class token attends to is held back; where more than two fifths
  leave at a stage, it alone says who stays. Best for maps, and nearly as good for the class token.
- `merge`: similar patches are averaged in pairs; none is dropped. Good for dense features.
- `key-norm`, `value-norm`: those with the longest keys or values.
- `random`: the same random places in every image; a control.
"""

SCORERS: tuple[Scorer, ...] = get_args(Scorer)


def evidence(scorer: Scorer | None, *, class_token: bool) -> tuple[Kind, ...]:
    """Name what to capture from the block before a stage; None stands for a learned predictor."""
    if scorer in ("class", "fuse"):
        return ("prefix_attention",) if class_token else ("query", "key")
    kinds: dict[Scorer | None, tuple[Kind, ...]] = {
        "merge": ("key",),
        "key-norm": ("key",),
        "value-norm": ("value",),
    }
    return kinds.get(scorer, ())


def class_attention(prefix_attention: Tensor, prefix: int) -> Tensor:
    """Attention of the class token to the patches, mean over heads.

    Args:
        prefix_attention: Rows of the prefix tokens, class token first, (B, heads, P, P + K).
        prefix: Number of prefix tokens P.
    """
    return prefix_attention[:, :, 0, prefix:].mean(dim=1)


def mean_attention(query: Tensor, key: Tensor, scale: float, prefix: int) -> Tensor:
    """Attention of the mean query of the patches, for networks that pool instead of a class token.

    Args:
        query: (B, heads, P + K, d).
        key: (B, heads, P + K, d).
        scale: Factor of the attention product.
        prefix: Number of prefix tokens P.
    """
    pooled = query[:, :, prefix:].mean(dim=2, keepdim=True)
    return scores(pooled, key, scale)[:, :, 0, prefix:].mean(dim=1)


def lengths(vectors: Tensor, prefix: int) -> Tensor:
    """Lengths of keys or values over all heads, (B, heads, P + K, d) -> (B, K)."""
    return vectors[:, :, prefix:].square().sum(dim=(1, 3)).sqrt()


def random_scores(places: Tensor, count: int, seed: int) -> Tensor:
    """Random numbers that belong to places of the grid: an image does not depend on its batch.

    Args:
        places: Where the K patches lie on the grid, (B, K).
        count: Patches N of the whole grid.
        seed: Of the numbers.
    """
    return torch.tensor(_drawn(count, seed), device=places.device)[places]


@functools.cache
def _drawn(count: int, seed: int) -> list[float]:
    """Draw once, in plain numbers: an exported graph holds them and does not draw itself."""
    numbers: list[float] = torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return numbers
