"""Checkpoints of the published PH-Reg code (arXiv 2505.21501, GitHub 0raiser0/PH-Reg).

They are state dicts of its two wrappers. That of DINOv2 holds `registers` beside the names of
Hugging Face, every tensor twice; that of CLIP holds `register_tokens` beside the names of OpenAI.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.clip_heads import dense_clip
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.checkpoint_file import read_checkpoint
from clearvit.backbones.sources.hf.export_hf import config_of
from clearvit.backbones.sources.hf.families import IMAGENET, OPENAI, blueprint_for, from_hf, to_hf
from clearvit.backbones.sources.hf.hf_config import exact_ratio
from clearvit.backbones.sources.hf.renaming import SHOWN, expand_blocks, from_source, to_source
from clearvit.backbones.sources.openclip import tower_rules
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.registers import with_registers
from clearvit.errors import ModelError
from clearvit.options import PositionRule

State = Mapping[str, Tensor]
HEAD_WIDTH = 64  # of every published student
DINOV2_REGISTERS, CLIP_REGISTERS = "registers", "register_tokens"
WHOLE, PARTIAL = "model_state_dict.", "trainable_state_dict."
DINOV2_NAMES = {
    "model.": "",
    "embed.": "embeddings.",
    "encoder.": "encoder.",
    "layernorm.": "layernorm.",
}
CLIP_NAMES = {"vit.": "", "original_image_encoder.": ""}  # the second is older


def import_official(
    path: str | Path,
    base: VitBackbone | None = None,
    *,
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu",
) -> VitBackbone:
    """Load a student that the published code trained.

    A DINOv2 student becomes a plain ViT with registers. A CLIP student was trained with the value
    head of MaskCLIP in place of its last block, so it comes with that head on: its tokens lie in
    the space of the texts.

    Args:
        path: The `.pth` file. It is read as weights only; a file that would run code is refused.
        base: The model it was trained from. Files that hold only what was trained need it; of a
            CLIP student it also brings the activation and the text tower.
        activation: Of a CLIP student without `base`: OpenAI and DFN are "quick_gelu", OpenCLIP's
            laion2B is "gelu"; the file does not say.
    """
    state, partial = _read_student(Path(path))
    if partial and base is None:
        raise ModelError(
            f"'{path}' holds only the {len(state)} tensors that were trained. Give the model they"
            " were trained from: import_official(path, base=clearvit.load('hf:…'))."
        )
    if DINOV2_REGISTERS in state:
        return _dinov2(state, base, f"official:{path}")
    if CLIP_REGISTERS in state:
        return _clip(state, base, f"official:{path}", activation)
    raise ModelError(
        f"'{path}' holds neither '{DINOV2_REGISTERS}' (DINOv2) nor '{CLIP_REGISTERS}' (CLIP), so"
        " it is no student of PH-Reg."
    )


# --- DINOv2 ---------------------------------------------------------------------------------


def _dinov2(state: State, base: VitBackbone | None, name: str) -> VitBackbone:
    theirs = _renamed(state, DINOV2_REGISTERS, DINOV2_NAMES, name)
    if base is not None:
        native = base.resized(tuple(base.network.patch_embed.img_size))
        theirs = {**to_hf(_cpu_state(base), config_of(native)), **theirs}
    try:
        config = _dinov2_config(theirs)
        ours = from_hf(theirs, config)
    except KeyError as error:
        raise ModelError(f"'{name}' is incomplete: {error} is missing.") from error
    size = (config["image_size"],) * 2
    preprocessing = Preprocessing(size, *IMAGENET)
    blueprint = blueprint_for(ours, config)
    plain = _built(blueprint, ours, preprocessing, name, "bicubic-offset")
    return with_registers(plain, state[DINOV2_REGISTERS].reshape(-1, plain.width))


def _dinov2_config(state: State) -> dict[str, Any]:
    table, patch = "embeddings.position_embeddings", "embeddings.patch_embeddings.projection.weight"
    width = state[table].shape[-1]
    first = "encoder.layer.0.mlp."
    gated = f"{first}weights_in.weight" in state
    inner = state[f"{first}weights_out.weight" if gated else f"{first}fc2.weight"].shape[1]
    ratio = (
        inner / width * (1.5 if gated else 1.0)
    )  # see the gate in clearvit.backbones.sources.hf.hf_config
    side = _side(state[table].shape[-2] - 1)
    return {
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": _depth(state, "encoder.layer."),
        "num_attention_heads": _heads(width),
        "mlp_ratio": ratio,
        "use_swiglu_ffn": gated,
        "qkv_bias": "encoder.layer.0.attention.attention.query.bias" in state,
        "image_size": side * state[patch].shape[-1],
        "patch_size": state[patch].shape[-1],
    }


# --- CLIP -----------------------------------------------------------------------------------


def _clip(state: State, base: VitBackbone | None, name: str, activation: str) -> VitBackbone:
    theirs = _renamed(state, CLIP_REGISTERS, CLIP_NAMES, name)
    older = any(key.startswith("original_image_encoder.") for key in state)
    rules = _clip_rules(state[CLIP_REGISTERS].shape[-1])
    if base is not None:
        theirs = {**to_source(_cpu_state(base), expand_blocks(rules, base.depth)), **theirs}
    try:
        blueprint = _clip_blueprint(theirs, activation)
    except KeyError as error:
        raise ModelError(f"'{name}' is incomplete: {error} is missing.") from error
    if base is not None and base.blueprint is not None:
        changed = {**base.blueprint.arguments, "img_size": blueprint.arguments["img_size"]}
        blueprint = dataclasses.replace(base.blueprint, arguments=changed)
    ours = from_source(theirs, expand_blocks(rules, _depth(theirs, "transformer.resblocks.")))
    preprocessing = Preprocessing(tuple(blueprint.arguments["img_size"]), *OPENAI)
    plain = _built(blueprint, ours, preprocessing, name, "bicubic" if older else "bicubic-offset")
    plain.text = None if base is None else base.text
    return dense_clip(with_registers(plain, state[CLIP_REGISTERS]), "maskclip")


def _clip_rules(width: int) -> Any:
    return tower_rules(width, pre_norm=True, scaled=False, norm="norm")


def _clip_blueprint(state: State, activation: str) -> Blueprint:
    width, _, _, patch = state["conv1.weight"].shape
    size = _side(state["positional_embedding"].shape[-2] - 1) * patch
    hidden = len(state["transformer.resblocks.0.mlp.c_fc.weight"])
    arguments = {
        "img_size": [size, size],
        "patch_size": [patch, patch],
        "embed_dim": width,
        "depth": _depth(state, "transformer.resblocks."),
        "num_heads": _heads(width),
        "mlp_ratio": exact_ratio(width, hidden),
        "act_layer": activation,
        "global_pool": "token",
        "num_classes": state["proj"].shape[1],
    }
    return Blueprint("vit_base_patch16_clip_224", arguments, 1e-5)


# --- both -----------------------------------------------------------------------------------


def _read_student(path: Path) -> tuple[dict[str, Tensor], bool]:
    """Give the student's tensors, and whether they are only those that were trained."""
    tensors = read_checkpoint(path).tensors
    part = next(p for p in (PARTIAL, WHOLE, "") if any(key.startswith(p) for key in tensors))
    found = {key.removeprefix(part): t for key, t in tensors.items() if key.startswith(part)}
    # "module." is left by distributed training
    return {k.removeprefix("module."): t.float() for k, t in found.items()}, part == PARTIAL


def _renamed(state: State, registers: str, names: Mapping[str, str], source: str) -> State:
    """Bring names to those of the library, each tensor once."""
    result: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in state.items():
        prefix = next((p for p in names if key.startswith(p)), None)
        if prefix is None:
            unknown += [key] * (key != registers)
            continue
        name = names[prefix] + key.removeprefix(prefix)
        if name in result and not torch.equal(result[name], tensor):
            raise ModelError(f"'{source}' holds '{name}' twice, with different numbers.")
        result[name] = tensor
    if unknown:
        raise ModelError(
            f"'{source}' holds {len(unknown)} tensors that no student of PH-Reg has:"
            f" {_listed(unknown)}."
        )
    return result


def _built(
    blueprint: Blueprint,
    state: State,
    preprocessing: Preprocessing,
    name: str,
    positions: PositionRule,
) -> VitBackbone:
    network = blueprint.build()
    load_exactly(network, state, name)
    return VitBackbone(network, preprocessing, name=name, positions=positions, blueprint=blueprint)


def _cpu_state(backbone: VitBackbone) -> dict[str, Tensor]:
    return {key: t.detach().cpu() for key, t in backbone.network.state_dict().items()}


def _depth(state: State, prefix: str) -> int:
    blocks = {int(k[len(prefix) :].partition(".")[0]) for k in state if k.startswith(prefix)}
    if not blocks:
        raise KeyError(f"{prefix}0")
    return 1 + max(blocks)


def _side(patches: int) -> int:
    side = math.isqrt(patches)
    if side * side != patches:
        raise ModelError(f"its table of positions has {patches} rows, which is no square grid.")
    return side


def _heads(width: int) -> int:
    if width % HEAD_WIDTH:
        raise ModelError(f"its width {width} is no multiple of {HEAD_WIDTH}, the width of a head.")
    return width // HEAD_WIDTH


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
