"""Low-rank changes of the matrices of a network: W + B A, r rows in A (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.vit import VitBackbone

DOWN, UP = "low_rank_down", "low_rank_up"  # A (r, in) and B (out, r), parameters of a linear layer
KEPT = re.compile(r"blocks\.\d+\..*(norm|bias|gamma)|(fc_)?norm\.")  # trained whole beside factors


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
        if isinstance(layer, nn.Linear) and 0 <= block_of(name) < backbone.depth:
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
    dense = isinstance(backbone, DenseClip) and block_of(name) == backbone.depth - 1
    return dense or getattr(attention, "q_bias", None) is not None


def is_factor(name: str) -> bool:
    """Tell whether a parameter is one of the factors."""
    return name.endswith((DOWN, UP))


def block_of(name: str) -> int:
    """Give the block that a parameter belongs to, from 0; -1 for others."""
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) if match else -1
