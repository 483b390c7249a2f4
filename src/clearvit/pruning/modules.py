"""What is trained beside the network: DynamicViT's predictors and the fill of dropped patches.

The predictors are those of Rao et al., NeurIPS 2021: keep or drop, for every patch.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KEEP = 0  # channel of the output; the paper writes 1, its code and checkpoints have 0


class Predictor(nn.Module):
    """Decide from each patch and the mean of those still kept. Names are those of checkpoints."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_conv = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.out_conv = nn.Sequential(
            nn.Linear(width, width // 2),
            nn.GELU(),
            nn.Linear(width // 2, width // 4),
            nn.GELU(),
            nn.Linear(width // 4, 2),
            nn.LogSoftmax(dim=-1),
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, patches: Tensor, decision: Tensor | None = None) -> Tensor:
        """Return log-probabilities of keeping (channel 0) and dropping, (B, K, 2).

        Args:
            patches: Patch tokens as they enter the next block, (B, K, C).
            decision: 1 for patches still kept, 0 for dropped ones, (B, K); all 1 by default.
        """
        local, pooled = self.in_conv(patches).chunk(2, dim=-1)
        if decision is None:
            decision = torch.ones_like(patches[..., 0])
        weight = decision[..., None].to(pooled.dtype)
        # guarded: an image may have lost every patch
        mean = (pooled * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
        return cast(Tensor, self.out_conv(torch.cat([local, mean.expand_as(local)], dim=-1)))


class Predictors(nn.ModuleList):
    """One predictor for each stage; they share nothing."""

    def __init__(self, width: int, stages: int) -> None:
        super().__init__(Predictor(width) for _ in range(stages))
        self.width = width

    def keep_scores(self, stage: int, patches: Tensor) -> Tensor:
        """Log-probability of keeping each patch at the given stage, counted from 0, (B, K)."""
        return cast(Tensor, self[stage](patches))[..., KEEP]


class LearnedFill(nn.Module):
    """Restore a removed patch from the one that represents it and its own last value.

    One hidden layer as wide as the tokens; about 2 % of the MACs of a small ViT. Untrained it adds
    nothing, which is `fill="similar"`.

    Args:
        width: Channels C.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.norm_copied, self.norm_last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(2 * width, width), nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, copied: Tensor, last: Tensor) -> Tensor:
        """Give patches after the last block, before the final norm, (B, N, C).

        Args:
            copied: The patch that represents each one, after the last block, (B, N, C).
            last: Each patch when it was last in the sequence unmerged, (B, N, C).
        """
        both = torch.cat([self.norm_copied(copied), self.norm_last(last)], dim=-1)
        added: Tensor = self.outer(F.gelu(self.inner(both)))
        return copied + added
