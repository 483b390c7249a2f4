"""Multiply-accumulates (MACs) of a backbone, with and without what pruning itself costs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.capture import shares_projection
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.selection import removes_pairs


@dataclass(frozen=True)
class Macs:
    """MACs of one image; papers often call them FLOPs."""

    dense: float  # embedding, all blocks with all patches, classifier
    network: float  # the same with the kept patches only, without scoring
    scoring: float  # predictors, attention rows, matching, learned fill; keys projected again

    @property
    def total(self) -> float:
        """What is really computed."""
        return self.network + self.scoring

    @property
    def gain(self) -> float:
        """How many times less than dense, scoring included."""
        return self.dense / self.total

    def __str__(self) -> str:
        return (
            f"{self.total / 1e9:.2f} GMACs ({self.network / 1e9:.2f} without scoring),"
            f" dense {self.dense / 1e9:.2f}: {self.gain:.2f}x"
        )


def macs(backbone: Backbone, size: int | Size | None = None) -> Macs:
    """Count the MACs of one image.

    Args:
        backbone: A ViT, pruned or not.
        size: Pixels, one number or (height, width); the backbone's own by default.
    """
    if not isinstance(backbone, VitBackbone):
        raise ModelError(f"'{backbone.name}' is a grid-only backbone; MACs are counted for ViTs.")
    height, width = backbone.fitting_size(size)
    patches = height // backbone.patch[0] * (width // backbone.patch[1])
    outside = _embedding(backbone, (height, width)) + _weights(
        getattr(backbone.network, "head", None)
    )
    each = _weights(getattr(backbone.network, "aux_head", None))  # LV-ViT classifies patches too
    dense = outside + _blocks(backbone, [patches] * backbone.depth) + patches * each
    if not isinstance(backbone, PrunedBackbone):
        return Macs(dense, dense, 0.0)
    counts = [patches, *backbone.plan.counts(patches)]  # at first and after each stage
    network = outside + _blocks(backbone, _lengths(backbone, counts)) + counts[-1] * each
    return Macs(dense, network, _scoring(backbone, counts))


def _lengths(backbone: PrunedBackbone, counts: list[int]) -> list[int]:
    """Patches in the sequence of each block."""
    stages = backbone.plan.stages
    return [counts[sum(stage <= block for stage in stages)] for block in range(backbone.depth)]


def _embedding(backbone: VitBackbone, size: Size) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        pixels = torch.zeros(1, 3, *size, device=backbone.device, dtype=backbone.dtype)
        backbone.embed_patches(pixels)
    return float(counter.get_total_flops()) / 2


def _blocks(backbone: VitBackbone, patches: list[int]) -> float:
    total = 0.0
    for block, count in zip(backbone.network.blocks, patches, strict=True):
        length = len(backbone.prefix_names) + count
        total += length * _weights(block) + 2 * length**2 * _attention_width(block)
    return total


def _weights(module: Any) -> float:
    """MACs per token of all linear layers."""
    if not isinstance(module, nn.Module):
        return 0.0
    return float(sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear)))


def _attention_width(block: Any) -> int:
    """Channels that enter the attention product, over all heads and parallel branches."""
    heads = [m for m in block.modules() if hasattr(m, "num_heads") and hasattr(m, "head_dim")]
    return sum(m.num_heads * m.head_dim for m in heads)


def _scoring(backbone: PrunedBackbone, counts: list[int]) -> float:
    """MACs of choosing the patches at every stage."""
    total = 0.0
    for stage, (before, after) in enumerate(itertools.pairwise(counts)):
        if backbone.plan.keep[stage] == 1:
            continue
        if backbone.predictors is not None:
            total += before * _weights(backbone.predictors[stage])
        if backbone.captures_before(backbone.plan.stages[stage]):
            total += _capturing(backbone, stage, before, after)
    return total + counts[0] * _weights(backbone.learned_fill)


def _capturing(backbone: PrunedBackbone, stage: int, before: int, after: int) -> float:
    """MACs of comparing queries and keys, and of projecting them again where that is needed."""
    plan, prefix = backbone.plan, len(backbone.prefix_names)
    attention = backbone.network.blocks[plan.stages[stage] - 1].attn
    inner = attention.num_heads * attention.head_dim
    length, kinds = prefix + before, set(backbone.captures_before(plan.stages[stage]))
    rows, again = 0, kinds & {"query", "key"}
    if "prefix_attention" in kinds:
        rows, again = prefix, again | {"key"}
    elif "query" in kinds:
        rows = 1  # the mean query
    total = rows * length * inner
    if not shares_projection(attention):
        total += (len(again) * length + prefix * ("prefix_attention" in kinds)) * (
            backbone.width * inner
        )
    if plan.represents:
        halves = plan.scorer == "merge" or (plan.merge and removes_pairs(before, after))
        pairs = (before + 1) // 2 * (before // 2) if halves else before * after
        total += pairs * attention.head_dim
    return float(total)
