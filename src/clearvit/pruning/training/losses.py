"""The losses of DynamicViT (Rao et al., NeurIPS 2021), and two that need no classifier.

L = CE + lambda * ratio + 0.5 * KL + 0.5 * tokens with a classifier; where patches are classified
too (LV-ViT), "tokens" is the KL of their logits, and CE and KL read the class token alone;
L = output + lambda * ratio + 0.5 * tokens without, where both distances are relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.pruning.config import RatioTarget


@dataclass(frozen=True)
class Weights:
    """How much each part of the loss counts, as published."""

    labels: float = 1.0  # cross-entropy to the labels
    ratio: float = 2.0  # lambda: 2 for DeiT-S, 5 for DeiT-B
    logits: float = 0.5  # KL to the teacher
    tokens: float = 0.5  # kept patches to the teacher's
    output: float = 1.0  # without a classifier: class token or pooled patches to the teacher's


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy to soft labels, (B, K) both, mean over images."""
    return -(labels * logits.float().log_softmax(dim=-1)).sum(dim=-1).mean()


def kl_divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student) of (B, K) at temperature 1, mean over images."""
    ours, theirs = (x.float().log_softmax(dim=-1) for x in (logits, teacher))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def ratio_loss(
    decisions: Sequence[Tensor], keep: Sequence[float], target: RatioTarget = "image"
) -> Tensor:
    """Squared distance of the kept fraction from `keep`, mean over stages (and images).

    Args:
        decisions: Of each stage, 1 for kept patches, (B, N).
        keep: Target of each stage, a fraction of all N patches.
        target: "image" holds every image to it, as published; "batch" only their mean.
    """
    kept = torch.stack([d.float().mean(dim=1) for d in decisions])  # (S, B)
    if target == "batch":
        kept = kept.mean(dim=1, keepdim=True)
    targets = torch.tensor(list(keep), device=kept.device)[:, None]
    return (kept - targets).square().mean()


def token_loss(patches: Tensor, teacher: Tensor, kept: Tensor, *, relative: bool = False) -> Tensor:
    """Mean squared difference over the kept patches of a batch and their channels.

    Args:
        patches: Of the student, (B, N, C).
        teacher: Of the dense model, (B, N, C).
        kept: (B, N) bool. If none is kept, the loss is 0.
        relative: Divide by the mean square of each of the teacher's patches, so that the scale of
            a network's tokens does not change the balance with the ratio loss.
    """
    each = _squared_error(patches, teacher, relative)
    weight = kept.to(each)
    return (each * weight).sum() / weight.sum().clamp(min=1)


def patch_kl(logits: Tensor, teacher: Tensor, kept: Tensor) -> Tensor:
    """KL(teacher || student) of the patches of an LV-ViT, mean over the kept ones of a batch.

    Args:
        logits: Of the student, (B, N, K).
        teacher: Of the dense model, (B, N, K).
        kept: (B, N) bool. If none is kept, the loss is 0.
    """
    ours, theirs = (x.float().log_softmax(dim=-1) for x in (logits, teacher))
    each = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1)
    weight = kept.to(each)
    return (each * weight).sum() / weight.sum().clamp(min=1)


def relative_error(vectors: Tensor, teacher: Tensor) -> Tensor:
    """Relative squared difference of vectors (..., D) of images or patches, mean over all."""
    return _squared_error(vectors, teacher, relative=True).mean()


def _squared_error(ours: Tensor, theirs: Tensor, relative: bool) -> Tensor:
    """(..., C) -> (...), in float32."""
    ours, theirs = ours.float(), theirs.float()
    each = (ours - theirs).square().mean(dim=-1)
    if not relative:
        return each
    return each / theirs.square().mean(dim=-1).clamp(min=torch.finfo(each.dtype).tiny)
