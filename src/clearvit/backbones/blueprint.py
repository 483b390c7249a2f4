"""How to build a network again without its weights: a timm architecture and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from clearvit.backbones.guarded_timm import Eva, timm
from clearvit.errors import ModelError


@dataclass(frozen=True)
class Blueprint:
    """A timm architecture with the arguments that differ from its defaults; JSON can hold both.

    `epsilon` is the one thing timm cannot be told in words: the constant of the layer norms, for
    models of libraries that chose another one than timm's architecture.
    """

    architecture: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None

    def build(self) -> nn.Module:
        """Create the network with random weights, in evaluation mode, for any image size."""
        network: nn.Module = timm.create_model(
            self.architecture, pretrained=False, **{"dynamic_img_size": True, **self.arguments}
        )
        if self.epsilon is not None:
            for module in network.modules():
                if isinstance(module, nn.LayerNorm):
                    module.eps = self.epsilon
        return network.eval()


def load_exactly(network: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load weights, or list every key that is missing, unexpected or of another shape."""
    own = network.state_dict()
    problems = [f"missing {key}" for key in own if key not in state]
    problems += [f"unexpected {key}" for key in state if key not in own]
    problems += [
        f"{key} is {tuple(state[key].shape)}, the network wants {tuple(tensor.shape)}"
        for key, tensor in own.items()
        if key in state and state[key].shape != tensor.shape
    ]
    if problems:
        raise ModelError(
            f"the weights of '{name}' do not fit the network ({len(problems)} differences):\n  "
            + "\n  ".join(problems)
        )
    network.load_state_dict(dict(state), strict=True)


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
