"""Give a ViT register tokens: the same weights, a few tokens more, no position for them."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clearvit.backbones.blueprint import load_exactly, registers_option
from clearvit.backbones.positions import resample_positions
from clearvit.backbones.sources.hf.export_hf import has_class, takes_registers
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.errors import ModelError
from clearvit.options import Size

DEFAULT = 16  # as published
NOISE = 0.02  # of the standard deviation of the patch embeddings, so that registers differ


def with_registers(backbone: VitBackbone, registers: Tensor) -> VitBackbone:
    """Copy a backbone and add registers; the original is left as it was.

    The position of the class token is folded into it and registers have none, so the copy is a
    plain timm network with `reg_tokens` and `no_embed_class`.

    Args:
        backbone: A ViT without registers.
        registers: Their values before the first block, (m, C); m = 0 gives a plain copy.
    """
    if not len(registers):
        return backbone.around(copy.deepcopy(backbone.network), backbone.blueprint)
    check_can_hold(backbone)
    assert backbone.blueprint is not None
    arguments: dict[str, Any] = {**backbone.blueprint.arguments}
    arguments[registers_option(backbone.network)] = len(registers)
    if backbone.network.pos_embed is not None:
        arguments["no_embed_class"] = True
    blueprint = dataclasses.replace(backbone.blueprint, arguments=arguments)
    network = blueprint.build().to(backbone.device, backbone.dtype)
    state = _fold_class_position(backbone.network)
    state["reg_token"] = registers[None].to(backbone.device, backbone.dtype)
    load_exactly(network, state, backbone.name)
    return backbone.around(network, blueprint)


def registers_for(backbone: VitBackbone, wanted: int | None) -> tuple[int, str]:
    """Decide how many registers to add: as many as wanted, else 16 where they can live.

    That is in timm's network and, where transformers has a class for the model, in that class too:
    the result should be able to go wherever the model could. Returns the number, and why there are
    none if nobody asked for that.
    """
    if wanted is not None:
        if wanted:
            check_can_hold(backbone)
        return wanted, ""
    obstacle = _obstacle(backbone) or ""
    from_hub = backbone.name.startswith("hf:")
    if not obstacle and not takes_registers(backbone) and (from_hub or has_class(backbone)):
        obstacle = f"no Hugging Face class could hold '{backbone.name}' with them."
    return (0, f"no registers are added: {obstacle}") if obstacle else (DEFAULT, "")


def check_can_hold(backbone: VitBackbone) -> None:
    """Refuse a model that has registers already or whose family cannot hold them."""
    obstacle = _obstacle(backbone)
    if obstacle:
        raise ModelError(obstacle)


def _obstacle(backbone: VitBackbone) -> str | None:
    names = backbone.prefix_names
    if "register" in names:
        return (
            f"'{backbone.name}' has {names.count('register')} registers already, trained or from an"
            " earlier cure. Cure the original model, or distil without new ones: registers=0."
        )
    if "distillation" in names:
        return (
            f"'{backbone.name}' has a distillation token, and timm's distilled networks cannot hold"
            " registers beside it. Distil without: registers=0."
        )
    if backbone.blueprint is None:
        return (
            f"'{backbone.name}' cannot be given registers: its architecture is not known. Create"
            " it with timm.create_model, or distil without: registers=0."
        )
    return None


def initial_registers(backbone: VitBackbone, config: CureConfig, pixels: Tensor) -> Tensor:
    """Choose the values of new registers before training, (m, C).

    "mean-patch" starts at the mean patch embedding of some images plus a little noise: one more
    average patch changes almost nothing, so the student starts where its teacher is. "normal" is
    PH-Reg's N(0, 1) / sqrt(C), which disturbs a small model until training has repaired it.

    Args:
        backbone: The network they are for.
        config: Number of registers, rule and seed.
        pixels: Normalized images (B, 3, height, width); only "mean-patch" uses them.
    """
    width = backbone.network.embed_dim
    rng = torch.Generator().manual_seed(config.seed)
    noise = torch.randn(config.registers or 0, width, generator=rng)
    if config.register_init == "normal":
        return noise / math.sqrt(width)
    pixels = pixels.to(backbone.device, backbone.dtype)
    with torch.no_grad():
        patches = torch.cat([_embed(backbone, image[None]) for image in pixels]).float().cpu()
    return patches.mean(0) + NOISE * patches.std(0) * noise


def _embed(backbone: VitBackbone, pixels: Tensor) -> Tensor:
    """Embed the patches of one image with their positions, before any norm, (N, C)."""
    patches = backbone.embed_patches(pixels)
    grid = (patches.shape[1], patches.shape[2])
    sequence = backbone.add_positions(patches.flatten(1, 2), grid)
    return sequence[0, len(backbone.prefix_names) :]


def _fold_class_position(network: Any) -> dict[str, Tensor]:
    """Give the weights with the position of the class token added to it."""
    state: dict[str, Tensor] = {key: t.detach().clone() for key, t in network.state_dict().items()}
    if network.pos_embed is None or network.no_embed_class or network.cls_token is None:
        return state
    state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    state["pos_embed"] = state["pos_embed"][:, 1:]
    return state


class _AddPosition(nn.Module):
    def __init__(self, position: Tensor) -> None:
        super().__init__()
        self.position = nn.Parameter(position)

    def forward(self, token: Tensor) -> Tensor:
        return token + self.position


def split_class_position(student: nn.Module, original: Any) -> None:
    """Undo the folding for the time of training: the class position trains, the token does not.

    Weight decay then acts on the position alone, as on a table that has a row for it.

    Args:
        student: A network made by `with_registers`.
        original: The network it was made from; nothing is done if that has no such row.
    """
    if not getattr(student, "no_embed_class", False) or original.no_embed_class:
        return
    if original.pos_embed is None or original.cls_token is None:
        return
    with torch.no_grad():
        student.cls_token.copy_(original.cls_token)  # type: ignore[operator]
    position = original.pos_embed[:, :1].detach().clone()
    parametrize.register_parametrization(student, "cls_token", _AddPosition(position))


def fold_class_position(student: nn.Module) -> None:
    """Add a position that was split off back to the class token, for good."""
    if parametrize.is_parametrized(student, "cls_token"):
        parametrize.remove_parametrizations(student, "cls_token", leave_parametrized=True)


def with_position_grid(backbone: VitBackbone, size: Size) -> VitBackbone:
    """Copy a backbone with a position table of its own for images of (height, width) pixels."""
    network = backbone.network
    native = tuple(network.patch_embed.grid_size)
    grid = (size[0] // backbone.patch[0], size[1] // backbone.patch[1])
    if network.pos_embed is None or grid == native:
        return backbone
    if backbone.blueprint is None:
        raise ModelError(f"'{backbone.name}' cannot be rebuilt: its architecture is not known.")
    arguments = {**backbone.blueprint.arguments, "img_size": list(size)}
    blueprint = dataclasses.replace(backbone.blueprint, arguments=arguments)
    rows = 0 if network.no_embed_class else len(backbone.prefix_names)
    state = dict(network.state_dict())
    state["pos_embed"] = resample_positions(
        network.pos_embed.detach(), native, grid, backbone.positions, prefix=rows
    )
    built = blueprint.build().to(backbone.device, backbone.dtype)
    load_exactly(built, state, backbone.name)
    return backbone.around(built, blueprint)
