"""How to build a network again without its weights: a timm architecture and its arguments.

A blueprint may come from a file of a stranger, so timm is given only arguments of a fixed list,
each within its range, and only names of architectures that timm itself has, or that `OWN` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.guarded_timm import Eva, timm
from clearvit.errors import ModelError
from clearvit.schema import (
    Rule,
    check_content,
    either,
    flag,
    list_of,
    nothing,
    number,
    one_of,
    shorten,
    whole,
)

_SIDE = whole(1, 65536)  # of images and patches, in pixels
_SIDES = either(_SIDE, list_of(_SIDE, 2, 2))
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")
ARGUMENTS: dict[str, Rule] = {  # all that timm may be told
    "act_layer": one_of(*ACTIVATIONS),
    "class_token": flag,
    "depth": whole(1, 512),
    "dynamic_img_size": flag,
    "embed_dim": whole(1, 65536),
    "fc_norm": flag,
    "global_pool": one_of("", "avg", "avgmax", "max", "token", "map", "prr"),
    "img_size": _SIDES,
    "init_values": either(nothing, number(0, 1e3)),
    "mlp_ratio": number(1e-3, 1024),
    "no_embed_class": flag,
    "num_classes": whole(0, 1_000_000),
    "num_heads": whole(1, 1024),
    "num_reg_tokens": whole(0, 4096),
    "patch_size": _SIDES,
    "pre_norm": flag,
    "qk_norm": flag,
    "qkv_bias": flag,
    "reg_tokens": whole(0, 4096),
    "rope_temperature": number(1e-6, 1e12),
    "swiglu_align_to": whole(0, 4096),
    "use_fc_norm": flag,
}
OWN = ("lvvit_s", "lvvit_m")  # architectures that clearvit has and timm has not
SHOWN = 20  # differences between weights and network in one message


@dataclass(frozen=True)
class Blueprint:
    """A timm architecture with the arguments that differ from its defaults; JSON can hold both.

    `epsilon` is the one thing timm cannot be told in words: the constant of the layer norms, for
    models of libraries that chose another one than timm's architecture.
    """

    architecture: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None

    def check(self) -> None:
        """Refuse what could load a file, ask a hub, or fill the memory.

        Raises:
            ModelError: An argument is not in the list, or has a value that makes no network.
        """
        name = self.architecture
        known = isinstance(name, str) and name.isidentifier()
        if not known or (self.in_timm and not timm.is_model(name)):
            raise ModelError(f"{shorten(name)} is no architecture of timm.")
        where = f"arguments of {name}"
        check_content(self.arguments, ARGUMENTS, where=where, error=ModelError, optional=ARGUMENTS)
        epsilon = either(nothing, number(0, 1))(self.epsilon)
        width, heads = self.arguments.get("embed_dim"), self.arguments.get("num_heads")
        if epsilon:
            raise ModelError(f"epsilon is {shorten(self.epsilon)}; {epsilon}.")
        if width and heads and width % heads:
            raise ModelError(f"{heads} heads do not divide {width} channels.")

    def build(self) -> nn.Module:
        """Create the network with random weights, in evaluation mode, for any image size."""
        self.check()
        try:
            network = self._create({"dynamic_img_size": True, **self.arguments})
        except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ModelError(
                f"timm cannot build '{self.architecture}' with these arguments: {error}."
            ) from error
        if self.epsilon is not None:
            for module in network.modules():
                if isinstance(module, nn.LayerNorm):
                    module.eps = self.epsilon
        return network.eval()

    @property
    def in_timm(self) -> bool:
        """Whether timm alone can build the network."""
        return self.architecture not in OWN

    def _create(self, arguments: dict[str, Any]) -> nn.Module:
        if self.in_timm:
            network: nn.Module = timm.create_model(self.architecture, pretrained=False, **arguments)
            return network
        from clearvit.backbones.sources.lvvit_network import create_lvvit

        return create_lvvit(self.architecture, arguments)


def build_with(blueprint: Blueprint, state: Mapping[str, Tensor], name: str) -> nn.Module:
    """Create a network and load its weights.

    The shapes are compared on a network without memory first, so that a blueprint of 100 GB beside
    a file of 1 MB is refused before anything is allocated.
    """
    with torch.device("meta"):
        compare_state(blueprint.build().state_dict(), state, name)
    network = blueprint.build()
    load_exactly(network, state, name)
    return network


def load_exactly(network: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load weights, or list every key that is missing, unexpected or of another shape."""
    compare_state(network.state_dict(), state, name)
    network.load_state_dict(dict(state), strict=True)


def compare_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor], name: str) -> None:
    """List every key that is missing, unexpected or of another shape as one error."""
    problems = [f"missing {key}" for key in own if key not in state]
    problems += [f"unexpected {key}" for key in state if key not in own]
    for key, tensor in own.items():
        given = state.get(key)
        if given is not None and given.shape != tensor.shape:
            wanted = tuple(tensor.shape)
            problems.append(f"{key} is {tuple(given.shape)}, the network wants {wanted}")
        elif given is not None and given.is_floating_point() != tensor.is_floating_point():
            problems.append(f"{key} holds {given.dtype}, the network wants {tensor.dtype}")
    if problems:
        raise ModelError(
            f"the weights of '{name}' do not fit the network (differences: {len(problems)}):\n  "
            + "\n  ".join(problems[:SHOWN])
            + (f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else "")
        )


def check_finite(network: nn.Module, name: str) -> None:
    """Refuse weights with NaN or infinity; one sum per tensor, since either shows in it."""
    for key, tensor in network.state_dict().items():
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        if not tensor.sum(dtype=torch.float32).isfinite() and not tensor.isfinite().all():
            raise ModelError(
                f"'{key}' of '{name}' holds NaN or infinity: the weights are damaged. Fetch or"
                " train them again."
            )


def blueprint_of(network: Any, name: str) -> Blueprint:
    """Describe a timm ViT that somebody else created.

    The architecture is the one timm registered it under; what is commonly changed at creation is
    read off the network. Saving checks that the description is complete.
    """
    config = getattr(network, "pretrained_cfg", None) or {}
    architecture = config.get("architecture")
    if not architecture:
        raise ModelError(
            f"'{name}' was not created by timm.create_model, so it cannot be rebuilt from a name."
        )
    arguments: dict[str, Any] = {
        "img_size": list(network.patch_embed.img_size),
        "embed_dim": network.embed_dim,
        "depth": len(network.blocks),
        "num_classes": network.num_classes,
        "global_pool": network.global_pool,
        "class_token": network.cls_token is not None,
        "no_embed_class": network.no_embed_class,
    }
    if not hasattr(network.patch_embed, "backbone"):  # a hybrid's patch is that of its own grid
        arguments["patch_size"] = list(network.patch_embed.patch_size)
    if hasattr(network.blocks[0], "attn"):
        arguments["num_heads"] = network.blocks[0].attn.num_heads
    registers = getattr(network, "reg_token", None)
    count = 0 if registers is None else registers.shape[1]
    arguments[registers_option(network)] = count
    return Blueprint(architecture, arguments)


def registers_option(network: nn.Module) -> str:
    """Name the argument that gives a timm network its registers."""
    return "num_reg_tokens" if isinstance(network, Eva) else "reg_tokens"
