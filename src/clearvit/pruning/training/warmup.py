"""Warm-up of the predictors on the attention of later blocks.

A scorer without training sees the attention of the block before a stage. What counts is the
attention of the blocks after it, which a dense pass knows. Predictors that learn it start far above
random, at the price of a forward pass: there is no backward pass through the network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.backbones.capture import prefix_to_patches
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.pruning.modules import KEEP, Predictors
from clearvit.pruning.pruning_plan import Plan
from clearvit.pruning.scores import captures_for, mean_attention


def warmup_loss(teacher: VitBackbone, predictors: Predictors, plan: Plan, pixels: Tensor) -> Tensor:
    """Cross-entropy of keeping the patches that later blocks attend to most.

    The mean over stages, and over patches that were still kept. Each stage keeps, of those, its
    number of patches.

    Args:
        teacher: The dense model.
        predictors: One for each stage; they get the gradients.
        plan: Stages and fractions.
        pixels: Normalised, (B, 3, height, width).
    """
    first, depth = plan.stages[0], teacher.depth
    kinds = captures_for("class", class_token="class" in teacher.prefix_names)
    with torch.no_grad():
        seen = teacher.forward(pixels, layers=range(first - 1, depth), norm=False, capture=kinds)
        attention = torch.stack([_attention(teacher, seen, b) for b in range(first, depth)])
    counts = plan.counts(attention.shape[2])
    kept = torch.ones_like(attention[0], dtype=torch.bool)
    losses = []
    for stage, (block, count) in enumerate(zip(plan.stages, counts, strict=True)):
        patches = seen.layers[block - 1].patches
        later = attention[block - first :].mean(0).masked_fill(~kept, -torch.inf)
        target = torch.zeros_like(kept).scatter_(1, later.topk(count, dim=1).indices, True)
        scores = predictors[stage](patches, kept.to(patches.dtype))
        each = torch.where(target, scores[..., KEEP], scores[..., 1 - KEEP])
        losses.append(-each[kept].float().mean())
        kept = target
    return torch.stack(losses).mean()


def _attention(teacher: VitBackbone, seen: Tokens, block: int) -> Tensor:
    """Attention to each patch in a block, (B, N)."""
    prefix = len(teacher.prefix_names)
    if "class" in teacher.prefix_names:
        return prefix_to_patches(seen.prefix_attention[block], prefix)
    scale = teacher.network.blocks[block].attn.scale
    return mean_attention(seen.query[block], seen.key[block], scale, prefix)
