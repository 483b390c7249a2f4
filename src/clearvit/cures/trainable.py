"""Which weights of a student train: parts of the network, or low-rank factors beside its matrices.

A cure changes every matrix by little and in few directions: cut to rank 8, the change that a full
training makes keeps nine tenths of its effect. "low-rank" trains that change directly, W + B A with
r rows in A (LoRA, arXiv 2106.09685), and lets norms and biases train as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.errors import ModelError

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
# higher one for the registers; see docs/results/tried.md.
RATES = {False: (1e-5, (15.0, 0.2, 0.06)), True: (2e-4, (0.75, 0.01, 0.003))}
NORM_SCALE = 0.5  # of norms and biases beside factors
DOWN, UP = "low_rank_down", "low_rank_up"  # A (r, in) and B (out, r), parameters of a linear layer
KEPT = re.compile(r"blocks\.\d+\..*(norm|bias|gamma)|(fc_)?norm\.")  # trained whole beside factors


def parameters_of(backbone: VitBackbone, part: str) -> set[str]:
    """Name the parameters of one part of a network: a word of PARTS, "last" or "last-N".

    "low-rank" names what is trained whole beside the factors: norms and biases.
    """
    names = {name for name, _ in backbone.network.named_parameters()}
    if part == LOW_RANK:
        return {n for n in names if KEPT.match(n) and _block_of(n) < backbone.depth}
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
    wanted |= {n for n, _ in backbone.network.named_parameters() if _is_factor(n)}
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
            if low_rank and part == "blocks" and not _is_factor(name):
                part = "norms"
            matrix = name.endswith("weight") and parameter.ndim > 1
            decay = config.weight_decay if matrix or config.decay_all else 0.0
            groups.setdefault((part, decay), []).append(parameter)
    return [
        {"params": p, "lr": lr * scales.get(part, 1.0), "weight_decay": decay, "name": part}
        for (part, decay), p in groups.items()
    ]


# --- low-rank factors ---------------------------------------------------------------------------


class AddProduct(nn.Module):
    """W + B A as a weight, for layers whose weight is read by others than the layer itself."""

    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.low_rank_down, self.low_rank_up = nn.Parameter(down), nn.Parameter(up)

    def forward(self, weight: Tensor) -> Tensor:
        """Add the product of the factors, (out, in)."""
        return weight + self.low_rank_up @ self.low_rank_down


def add_factors(backbone: VitBackbone, rank: int, seed: int) -> None:
    """Put factors beside every linear layer of the blocks; the outputs are the same at first.

    Args:
        backbone: Its network is changed in place; `merge_factors` ends that.
        rank: Rows of A and columns of B, at most the smaller side of a matrix.
        seed: Of A, which is random; B is zero.
    """
    rng = torch.Generator().manual_seed(seed)
    for name, layer in linear_layers(backbone):
        outputs, inputs = layer.weight.shape
        count = min(rank, outputs, inputs)
        down = torch.randn(count, inputs, generator=rng) / math.sqrt(inputs)
        down, up = down.to(layer.weight), layer.weight.new_zeros(outputs, count)
        if _weight_is_read(backbone, name):
            parametrize.register_parametrization(layer, "weight", AddProduct(down, up))
        else:
            layer.register_parameter(DOWN, nn.Parameter(down))
            layer.register_parameter(UP, nn.Parameter(up))
            layer.register_forward_hook(_add_to_output)


def merge_factors(network: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Add the factors to their matrices, for good; returns B and A by name of the weight."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, layer in network.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        if parametrize.is_parametrized(layer, "weight"):
            (product,) = layer.parametrizations["weight"]  # type: ignore[index]
            assert isinstance(product, AddProduct)
            found[f"{name}.weight"] = (product.low_rank_up.detach(), product.low_rank_down.detach())
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
        elif hasattr(layer, DOWN):
            up, down = getattr(layer, UP).detach(), getattr(layer, DOWN).detach()
            found[f"{name}.weight"] = (up, down)
            with torch.no_grad():
                layer.weight += up @ down
            delattr(layer, UP)
            delattr(layer, DOWN)
            for key, hook in list(layer._forward_hooks.items()):
                if hook is _add_to_output:
                    del layer._forward_hooks[key]
    return found


def linear_layers(backbone: VitBackbone) -> Iterator[tuple[str, nn.Linear]]:
    """List the linear layers of the blocks that run, by name."""
    for name, layer in backbone.network.named_modules():
        if isinstance(layer, nn.Linear) and 0 <= _block_of(name) < backbone.depth:
            yield name, layer


def _add_to_output(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + F.linear(F.linear(inputs[0], getattr(layer, DOWN)), getattr(layer, UP))


def _weight_is_read(backbone: VitBackbone, name: str) -> bool:
    """Tell whether the weight of a layer is used without calling the layer.

    BEiT's attention does so with `qkv`, to add its own biases, and the dense heads of CLIP with
    that of the last block.
    """
    if not name.endswith(".qkv"):
        return False
    attention = backbone.network.get_submodule(name.rpartition(".")[0])
    dense = isinstance(backbone, DenseClip) and _block_of(name) == backbone.depth - 1
    return dense or getattr(attention, "q_bias", None) is not None


def _is_factor(name: str) -> bool:
    return name.endswith((DOWN, UP))


def _block_of(name: str) -> int:
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) if match else -1
