"""Position embeddings at another size, by the rule of the library a model comes from.

- `bicubic-antialias`: timm, open_clip, transformers' Dinov2WithRegisters, DINOv2 hub `*_reg`.
- `bicubic`: transformers' ViT, DeiT, Dinov2, CLIP, SigLIP and ViT-MAE.
- `bicubic-offset`: the original DINOv2 hub models without registers; scale (H + 0.1) / H0.
- `bilinear-antialias`: SigLIP 2 with native aspect ratio.

The rules differ by up to 0.05 cosine per patch (DINOv2 at 224 px), so the rule belongs to the
model: every source sets its own, `cv.load(..., positions=...)` overrides it, `save` keeps it.
At the native grid all rules return the table unchanged. Rotary embeddings need no rule.
"""

from __future__ import annotations

from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError, closest
from clearvit.options import PositionRule

RULES: tuple[PositionRule, ...] = get_args(PositionRule)
OFFSET = 0.1  # patches; DINOv2's margin against rounding, part of its trained behavior


def check_rule(rule: str) -> PositionRule:
    """Return the rule if it exists, else raise with the list of rules."""
    for known in RULES:
        if rule == known:
            return known
    raise ModelError(f"positions is '{rule}'; use one of {', '.join(RULES)}.{closest(rule, RULES)}")


def resample_positions(
    table: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    rule: PositionRule,
    *,
    prefix: int = 0,
) -> Tensor:
    """Resize a table (1, prefix + H0*W0, C) from grid `old` to grid `new`, in patches.

    Rows of the prefix tokens are kept. Computed in float32, returned in the table's dtype.
    """
    if old == new:
        return table
    head, grid = table[:, :prefix], table[:, prefix:]
    image = grid.float().transpose(1, 2).unflatten(2, old)
    mode, _, variant = rule.partition("-")
    if variant == "offset":
        factor = ((new[0] + OFFSET) / old[0], (new[1] + OFFSET) / old[1])
        resized = F.interpolate(image, scale_factor=factor, mode=mode)
    else:
        resized = F.interpolate(image, size=new, mode=mode, antialias=variant == "antialias")
    if resized.shape[2:] != new:
        raise ModelError(f"the rule '{rule}' cannot resize a {old} grid to {new}.")
    rows = resized.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([head, rows], dim=1)
