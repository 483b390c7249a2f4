"""A cheap first lesson: foresee what the class token will attend to.

A scorer without training sees the attention of the block before a stage. What counts is the
attention of the blocks behind it, which a dense pass knows. Predictors that learn it start far from
chance, at the price of a forward pass: nothing is sent back through the network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.prune.budgets import Plan
from clearvit.prune.predictor import KEEP, Predictors
from clearvit.prune.scores import class_attention, evidence, mean_attention


def foresight(teacher: VitBackbone, predictors: Predictors, plan: Plan, pixels: Tensor) -> Tensor:
    """Cross-entropy of keeping the patches that later blocks attend to most.

    The mean over stages, and over patches that were still there. Each stage keeps, of those, its
    number of patches.

    Args:
        teacher: The dense model.
        predictors: One for each stage; they get the gradients.
        plan: Stages and shares.
        pixels: Normalised, (B, 3, height, width).
    """
    first, depth = plan.stages[0], teacher.depth
    kinds = evidence("class", class_token="class" in teacher.prefix_names)
    with torch.no_grad():
        seen = teacher.forward(pixels, layers=range(first - 1, depth), norm=False, capture=kinds)
        attention = torch.stack([_attention(teacher, seen, b) for b in range(first, depth)])
    counts = plan.counts(attention.shape[2])
    here = torch.ones_like(attention[0], dtype=torch.bool)
    losses = []
    for stage, (block, count) in enumerate(zip(plan.stages, counts, strict=True)):
        patches = seen.layers[block - 1].patches
        later = attention[block - first :].mean(0).masked_fill(~here, -torch.inf)
        stays = torch.zeros_like(here).scatter_(1, later.topk(count, dim=1).indices, True)
        scores = predictors[stage](patches, here.to(patches.dtype))
        each = torch.where(stays, scores[..., KEEP], scores[..., 1 - KEEP])
        losses.append(-each[here].float().mean())
        here = stays
    return torch.stack(losses).mean()


def _attention(teacher: VitBackbone, seen: Tokens, block: int) -> Tensor:
    """Attention to each patch in a block, (B, N)."""
    prefix = len(teacher.prefix_names)
    if "class" in teacher.prefix_names:
        return class_attention(seen.prefix_attention[block], prefix)
    scale = teacher.network.blocks[block].attn.scale
    return mean_attention(seen.query[block], seen.key[block], scale, prefix)
