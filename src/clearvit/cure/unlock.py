"""Which weights of the student may change, and how fast."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError

PARTS = {
    "registers": ("reg_token",),
    "positions": ("pos_embed",),
    "patches": ("patch_embed.",),
    "class": ("cls_token",),
    "norm": ("norm.", "fc_norm."),
}
LAST = re.compile(r"last(?:-(\d+))?")
WORDS = "registers, positions, patches, class, norm, last (block), last-N (blocks) or all"


def parameters_of(backbone: VitBackbone, part: str) -> list[str]:
    """Name the parameters of one part of a network: a word of PARTS, "last", "last-N" or "all"."""
    names = [name for name, _ in backbone.network.named_parameters()]
    match = LAST.fullmatch(part)
    if match:
        count = int(match[1] or 1)
        if count < 1:
            raise ModelError(f"'{part}' unlocks nothing; give a number of blocks from 1.")
        first = max(0, backbone.depth - count)  # a small network has no more than its blocks
        chosen = [f"blocks.{i}." for i in range(first, backbone.depth)]
    elif part == "all":
        chosen = ["reg_token", "pos_embed", "cls_token", "patch_embed.", "blocks.", "norm"]
    elif part in PARTS:
        chosen = list(PARTS[part])
    else:
        raise ModelError(f"there is no part '{part}' to unlock; use {WORDS}.")
    return [name for name in names if name.startswith(tuple(chosen))]


def unlock(
    backbone: VitBackbone, parts: Sequence[str], *, unused: Collection[str] = ()
) -> list[str]:
    """Let only these parts of a network change; returns the names of their parameters.

    Args:
        backbone: The student.
        parts: Words as in `parameters_of`.
        unused: Parameters that the output does not depend on; they stay locked.
    """
    wanted = {name for part in parts for name in parameters_of(backbone, part)} - set(unused)
    for name, parameter in backbone.network.named_parameters():
        parameter.requires_grad_(name in wanted)
    if not wanted:
        raise ModelError(f"nothing of '{backbone.name}' is unlocked; choose from {WORDS}.")
    return sorted(wanted)


def groups(
    network: nn.Module, rates: dict[str, float], *, decay: float, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Sort the unlocked parameters into groups of one rate and one weight decay.

    Args:
        network: Its unlocked parameters are taken.
        rates: Learning rate of "registers", "positions", "patches" and of the "rest".
        decay: Weight decay of matrices. Registers, positions, norms, biases and layer scales are
            not pulled towards zero.
        decay_all: Decay everything, as the published code does.
    """
    sorted_in: dict[tuple[str, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        part = next((p for p in ("registers", "positions", "patches") if _in(name, p)), "rest")
        matrix = name.endswith("weight") and parameter.ndim > 1
        weight = decay if decay_all or matrix else 0.0
        sorted_in.setdefault((part, weight), []).append(parameter)
    return [
        {"params": parameters, "lr": rates[part], "weight_decay": weight, "name": part}
        for (part, weight), parameters in sorted_in.items()
    ]


def _in(name: str, part: str) -> bool:
    return name.startswith(PARTS[part])
