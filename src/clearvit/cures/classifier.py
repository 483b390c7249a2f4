"""The classifier on top of a network, which a cure does not train but may disturb."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.vit import VitBackbone


def has_head(backbone: VitBackbone) -> bool:
    """Tell whether a network has a linear classifier on top of its tokens."""
    plain = not isinstance(backbone, DenseClip)
    return plain and isinstance(getattr(backbone.network, "head", None), nn.Linear)


@torch.no_grad()
def predict_classes(backbone: VitBackbone, pixels: Tensor) -> Tensor:
    """Give the class that the head of a network predicts for each image, (B,)."""
    tokens = backbone.forward(pixels)
    whole = torch.cat([tokens.prefix, tokens.patches], 1)
    logits: Tensor = backbone.network.forward_head(whole.to(backbone.dtype))
    return logits.flatten(1, -2).mean(1).argmax(1) if logits.ndim > 2 else logits.argmax(1)
