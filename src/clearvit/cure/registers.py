"""Give a ViT register tokens: the same weights, a few tokens more, no position for them."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from clearvit.backbones.blueprint import load_exactly, registers_option
from clearvit.backbones.hf_back import takes_registers
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, closest

Init = Literal["mean-patch", "official", "zeros"]
INITS: tuple[Init, ...] = get_args(Init)
MANY = 16  # won over none on held-out photos, by little: docs/results/cure.md
NOISE = 0.02  # of the spread of the patch embeddings: registers must differ to be told apart


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
    state = _folded(backbone.network)
    state["reg_token"] = registers[None].to(backbone.device, backbone.dtype)
    load_exactly(network, state, backbone.name)
    return backbone.around(network, blueprint)


def registers_for(backbone: VitBackbone, wanted: int | None) -> int:
    """Decide how many registers to add: as many as wanted, else 16 where there is a place.

    A model of Hugging Face gets none unasked if it could not go back there with them. Where none
    are added unasked, a warning says why.
    """
    if wanted is not None:
        if wanted:
            check_can_hold(backbone)
        return wanted
    obstacle = _obstacle(backbone)
    if not obstacle and backbone.name.startswith("hf:") and not takes_registers(backbone):
        obstacle = f"no Hugging Face class could hold '{backbone.name}' with them."
    if obstacle:
        warnings.warn(f"no registers are added: {obstacle}", stacklevel=2)
        return 0
    return MANY


def check_can_hold(backbone: VitBackbone) -> None:
    """Refuse a model that has registers already or whose family has no place for them."""
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


def initial_registers(
    backbone: VitBackbone, count: int, pixels: Tensor, *, init: Init = "mean-patch", seed: int = 0
) -> Tensor:
    """Choose the values of new registers before training, (count, C).

    "mean-patch" starts at the mean patch embedding of some pictures plus a little noise: one more
    average patch changes almost nothing, so the student starts where its teacher is. "official" is
    N(0, 1) / sqrt(C), which disturbs a small model until training has repaired it. "zeros" is what
    test-time registers want.

    Args:
        backbone: The network they are for.
        count: How many, m.
        pixels: Normalised pictures (B, 3, height, width); only "mean-patch" looks at them.
        init: The rule.
        seed: Of the noise.
    """
    if init not in INITS:
        raise ModelError(f"init is '{init}'; use {', '.join(INITS)}.{closest(init, INITS)}")
    if count < 0:
        raise ModelError(f"registers is {count}; give 0 or more.")
    width = backbone.network.embed_dim
    noise = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    if init == "official":
        return noise / width**0.5  # type: ignore[no-any-return]
    if init == "zeros":
        return torch.zeros_like(noise)
    with torch.no_grad():
        patches = torch.cat([_placed(backbone, picture[None]) for picture in pixels]).float().cpu()
    return patches.mean(0) + NOISE * patches.std(0) * noise


def _placed(backbone: VitBackbone, picture: Tensor) -> Tensor:
    """Patches with their positions, before any norm, (N, C)."""
    patches = backbone.embed_patches(picture)
    grid = (patches.shape[1], patches.shape[2])
    sequence = backbone.assembled(patches.flatten(1, 2), grid)
    return sequence[0, len(backbone.prefix_names) :]


def _folded(network: Any) -> dict[str, Tensor]:
    """Weights with the position of the class token added to it."""
    state: dict[str, Tensor] = {key: t.detach().clone() for key, t in network.state_dict().items()}
    if network.pos_embed is None or network.no_embed_class or network.cls_token is None:
        return state
    state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    state["pos_embed"] = state["pos_embed"][:, 1:]
    return state
