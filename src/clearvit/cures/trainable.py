"""Which weights of a student train: parts of the network, or low-rank factors beside its matrices.

A cure changes every matrix by little and in few directions: cut to rank 8, the change that a full
training makes keeps nine tenths of its effect. "low-rank" trains that change directly, W + B A with
r rows in A (LoRA, arXiv 2106.09685), and lets norms and biases train as they are.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.errors import ModelError
from clearvit.training.low_rank import KEPT, add_factors, block_of, is_factor

PARTS = {  # of a network, by how the names of their parameters begin
    "registers": ("reg_token",),
    "positions": ("pos_embed", "parametrizations.cls_token.0."),
    "patches": ("patch_embed.",),
    "class": ("cls_token",),
    "norm": ("norm.", "fc_norm."),
    "all": ("reg_token", "pos_embed", "cls_token", "patch_embed.", "blocks.", "norm", "fc_norm."),
}
LOW_RANK = "low-rank"
SCALED = ("registers", "positions", "patches")  # parts with a learning rate of their own
# Learning rate of the blocks, and relative to it those of SCALED; of whole matrices, of factors. A
# short run on a few hundred images does not survive the full rate on the embeddings, and needs a
# higher one for the registers.
RATES = {False: (1e-5, (15.0, 0.2, 0.06)), True: (2e-4, (0.75, 0.01, 0.003))}
NORM_SCALE = 0.5  # of norms and biases beside factors


def parameters_of(backbone: VitBackbone, part: str) -> set[str]:
    """Name the parameters of one part of a network: a word of PARTS, "last" or "last-N".

    "low-rank" names what is trained whole beside the factors: norms and biases.
    """
    names = {name for name, _ in backbone.network.named_parameters()}
    if part == LOW_RANK:
        return {n for n in names if KEPT.match(n) and block_of(n) < backbone.depth}
    match = re.fullmatch(r"last(?:-([1-9]\d*))?", part)
    if match is None and part not in PARTS:
        known = ", ".join((LOW_RANK, *PARTS))
        raise ModelError(f"there is no part '{part}' to train; use {known}, last, last-N.")
    starts: tuple[str, ...] = PARTS.get(part, ())
    if match is not None:
        first = max(0, backbone.depth - int(match[1] or 1))
        starts = tuple(f"blocks.{index}." for index in range(first, backbone.depth))
    return {name for name in names if name.startswith(starts)}


def unfreeze(backbone: VitBackbone, config: CureConfig) -> set[str]:
    """Let only some parts of a network train; returns the names of their parameters.

    "low-rank" adds factors to the matrices of the blocks first.
    """
    if LOW_RANK in config.unfreeze:
        add_factors(backbone, config.rank, config.seed)
    wanted = {name for part in config.unfreeze for name in parameters_of(backbone, part)}
    wanted |= {n for n, _ in backbone.network.named_parameters() if is_factor(n)}
    if isinstance(backbone, DenseClip) and not config.class_weight:
        wanted -= backbone.unused_parameters()  # only the class token passes them
    for name, parameter in backbone.network.named_parameters():
        parameter.requires_grad_(name in wanted)
    return wanted


def learning_rate(config: CureConfig) -> float:
    """Give the learning rate of the blocks: of the factors, or of whole matrices."""
    return config.lr or RATES[LOW_RANK in config.unfreeze][0]


def param_groups(network: nn.Module, config: CureConfig) -> list[dict[str, Any]]:
    """Group the trainable parameters by learning rate and weight decay."""
    low_rank, lr = LOW_RANK in config.unfreeze, learning_rate(config)
    scales = dict(zip(SCALED, config.lr_scale or RATES[low_rank][1], strict=True))
    scales["norms"] = NORM_SCALE
    groups: dict[tuple[str, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            part = next((part for part in SCALED if name.startswith(PARTS[part])), "blocks")
            if low_rank and part == "blocks" and not is_factor(name):
                part = "norms"
            matrix = name.endswith("weight") and parameter.ndim > 1
            decay = config.weight_decay if matrix or config.decay_all else 0.0
            groups.setdefault((part, decay), []).append(parameter)
    return [
        {"params": p, "lr": lr * scales.get(part, 1.0), "weight_decay": decay, "name": part}
        for (part, decay), p in groups.items()
    ]
