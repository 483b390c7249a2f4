"""The classifier on top of a network, which a cure does not train but may disturb."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


class HeadWitness:
    """What the head of a model predicts, to compare a student with again and again."""

    def __init__(self, original: VitBackbone) -> None:
        self.original = original
        self._classes: Tensor | None = None  # by the original, computed once

    def compare(
        self, backbone: VitBackbone, pixels: Callable[[], Iterable[Tensor]], least: float
    ) -> dict[str, float]:
        """Measure on how many images a model predicts the class that the original predicts.

        Args:
            backbone: The student.
            pixels: Reads the images, the same in every call, as batches (B, 3, height, width).
            least: Fraction of "agreement" below which the student is "refused".
        """
        if not (has_head(self.original) and has_head(backbone)):
            return {}
        if self._classes is None:
            self._classes = _predict_all(self.original, pixels())
        same = (_predict_all(backbone, pixels()) == self._classes).double().mean().item()
        return {"agreement": same, "refused": float(same < least)}


def _predict_all(backbone: VitBackbone, batches: Iterable[Tensor]) -> Tensor:
    return torch.cat([predict_classes(backbone, p.to(backbone.device)).cpu() for p in batches])
