"""Register neurons: the hidden units behind artifacts act on one extra token instead.

Jiang et al., "Vision Transformers Don't Need Trained Registers", NeurIPS 2025.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError


class NeuronBackbone(VitBackbone):
    """A ViT in which some hidden units of its MLPs act on a register only.

    In each listed block every listed unit gives the register the strongest value it has at any
    token of the same image, and every other token zero. The weights are those of the original.

    Attributes:
        neurons: Hidden units, as columns of the MLP's second layer, for each block from 0.
        spare_class: Whether the class token keeps its own values.
        report: How `cures.test_time` found the neurons; None if it did not.
    """

    report: Any = None

    def __init__(
        self, backbone: VitBackbone, neurons: Mapping[int, Tensor], *, spare_class: bool = True
    ) -> None:
        """Wrap a backbone whose last prefix token is the register; its network is shared."""
        if type(backbone) is not VitBackbone:  # another subclass would lose what it adds
            raise ModelError(
                f"'{backbone.name}' is a {type(backbone).__name__}; register neurons go into a"
                " plain ViT. Do this first and the other change afterwards."
            )
        self.__dict__.update(copy.copy(backbone).__dict__)
        self.neurons = {block: neurons[block].long().cpu() for block in sorted(neurons)}
        self.spare_class = spare_class
        if not self.prefix_names or self.prefix_names[-1] != "register":
            raise ModelError(
                f"'{self.name}' has no register that could take over these units. Give it"
                " one: clearvit.cures.registers.with_registers(backbone, torch.zeros(1, width))."
            )
        for block, units in self.neurons.items():
            _check_units(self, block, units)

    def run_block(
        self, index: int, x: Tensor, rope: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Pass (B, T, C) through one block, with its listed units moved to the register."""
        units = self.neurons.get(index)
        if units is None or not len(units):
            return super().run_block(index, x, rope, bias)
        register = len(self.prefix_names) - 1
        spared = [i for i, kind in enumerate(self.prefix_names) if kind == "class"]

        def move(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            chosen = units.to(inputs[0].device)
            kept = spared if self.spare_class else []
            return (move_to_register(inputs[0], chosen, register, spared=kept), *inputs[1:])

        handle = second_layer(self, index).register_forward_pre_hook(move)
        try:
            return super().run_block(index, x, rope, bias)
        finally:
            handle.remove()

    def _settings(self) -> tuple[object, ...]:
        listed = tuple((block, tuple(units.tolist())) for block, units in self.neurons.items())
        return (*super()._settings(), listed, self.spare_class)


def move_to_register(
    hidden: Tensor, units: Tensor, register: int, *, spared: Sequence[int] = ()
) -> Tensor:
    """Move the activations of some units from all tokens to the register, image by image.

    Args:
        hidden: Hidden activations of an MLP, (B, T, F).
        units: Which of the F units, (k,), all different.
        register: Index of the register among the T tokens.
        spared: Indices of tokens that keep their values, which still count for the maximum.

    Returns:
        (B, T, F): at the listed units, the register has the value of largest magnitude over all
        tokens, with its sign, and the others have 0. Doing it twice changes nothing.
    """
    values = hidden[..., units]
    strongest = values.abs().argmax(dim=1, keepdim=True)
    moved = torch.zeros_like(values)
    moved[:, [*spared]] = values[:, [*spared]]
    moved[:, register] = values.gather(1, strongest)[:, 0]
    return hidden.index_copy(-1, units, moved)


def second_layer(backbone: VitBackbone, index: int) -> nn.Linear:
    """The layer that reads the hidden units of a block's MLP, gated or not: one column per unit."""
    block: Any = backbone.network.blocks[index]
    layer = getattr(getattr(block, "mlp", None), "fc2", None)
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"block {index} of '{backbone.name}' is a {type(block).__name__} without a plain MLP."
            " Register neurons need timm's Mlp, GluMlp or SwiGLU under `mlp`; cure such a model by"
            " distillation."
        )
    return layer


def _check_units(backbone: VitBackbone, block: int, units: Tensor) -> None:
    if not 0 <= block < backbone.depth:
        raise ModelError(f"'{backbone.name}' has blocks 0 to {backbone.depth - 1}, not {block}.")
    width = second_layer(backbone, block).in_features
    inside = units.numel() == 0 or 0 <= int(units.min()) <= int(units.max()) < width
    if units.ndim != 1 or not inside or len(units.unique()) != len(units):
        raise ModelError(
            f"the neurons of block {block} must be different numbers from 0 to {width - 1}, (k,);"
            f" got {units.tolist()}."
        )
