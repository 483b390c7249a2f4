"""What a patch that left would look like at the end, learned from the dense model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LearnedFill(nn.Module):
    """Add to the one who stands for a patch what the patch itself was like when it left.

    A hidden layer as wide as the tokens; about two hundredths of the MACs of a small ViT. At first
    nothing is added, which is `fill="similar"`.

    Args:
        width: Channels C.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.norm_heir, self.norm_left = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(2 * width, width), nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, heir: Tensor, left: Tensor) -> Tensor:
        """Give patches after the last block, before the final norm, (B, N, C).

        Args:
            heir: Who stands for each patch, after the last block, (B, N, C).
            left: Each patch when it was last in the sequence on its own, (B, N, C).
        """
        both = torch.cat([self.norm_heir(heir), self.norm_left(left)], dim=-1)
        added: Tensor = self.outer(F.gelu(self.inner(both)))
        return heir + added
