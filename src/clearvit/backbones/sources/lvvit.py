"""LV-ViT with the weights of a checkpoint file of its authors: `lvvit:lvvit_s@FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, build_with
from clearvit.backbones.guarded_timm import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.checkpoint_file import (
    count_modules,
    fitting_heads,
    read_checkpoint,
)
from clearvit.backbones.sources.lvvit_network import ARCHITECTURES, PATCH
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, closest
from clearvit.options import PositionRule

PREDICTORS = "score_predictor."
ANCHOR = "blocks.0.attn.qkv.weight"  # of DeiT and LV-ViT
_NEEDED = ("cls_token", "pos_embed", "patch_embed.conv1.weight", ANCHOR)


def load_lvvit(name: str, positions: PositionRule | None = None) -> VitBackbone:
    """Load LV-ViT-S or -M.

    Args:
        name: `lvvit_s@FILE` or `lvvit_m@FILE`: a .pth or .pth.tar of the authors, of which only
            tensors are read, or a .safetensors file with the same names.
        positions: Rule for resizing position embeddings; else timm's own.
    """
    architecture, _, file = name.partition("@")
    if architecture not in ARCHITECTURES:
        near = closest(architecture, ARCHITECTURES)
        raise ModelError(f"'lvvit:{name}' is neither lvvit_s nor lvvit_m.{near}")
    if not file:
        raise ModelError(
            f"'lvvit:{architecture}' needs the path of a checkpoint file of its authors"
            f" (github.com/zihangJiang/TokenLabeling): 'lvvit:{architecture}@FILE'."
        )
    state = read_checkpoint(Path(file).expanduser()).find(ANCHOR).state
    if any(key.startswith(PREDICTORS) for key in state):
        raise ModelError(
            f"'{file}' is a pruned LV-ViT with predictors; load it with"
            f" clearvit.pruning.import_dynamicvit('{file}')."
        )
    blueprint = describe_lvvit(state, file)
    if blueprint.architecture != architecture:
        raise ModelError(f"'{file}' holds {blueprint.architecture}, not {architecture}.")
    return wrap_lvvit(blueprint, state, name=f"lvvit:{name}", positions=positions)


def wrap_lvvit(
    blueprint: Blueprint,
    state: Mapping[str, Tensor],
    *,
    name: str,
    positions: PositionRule | None = None,
) -> VitBackbone:
    """Build the network of a blueprint with weights, as a backbone."""
    height, width = blueprint.arguments["img_size"]
    return VitBackbone(
        build_with(blueprint, state, name),
        Preprocessing((height, width), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD),
        name=name,
        positions=positions or "bicubic-antialias",
        blueprint=blueprint,
    )


def is_lvvit(state: Mapping[str, Tensor]) -> bool:
    """Tell whether weights have the stem of LV-ViT."""
    return "patch_embed.conv1.weight" in state


def describe_lvvit(state: Mapping[str, Tensor], name: str, heads: int | None = None) -> Blueprint:
    """Read width, depth, classes and image size off the shapes of a state dict."""
    missing = [key for key in _NEEDED if key not in state]
    if missing or state["pos_embed"].ndim != 3:
        raise ModelError(f"'{name}' is no LV-ViT: it has no {', '.join(missing) or 'pos_embed'}.")
    rows, width = state["pos_embed"].shape[1:]
    depth = count_modules(state)
    side = round((rows - 1) ** 0.5)
    nearest = min(ARCHITECTURES, key=lambda one: abs(ARCHITECTURES[one]["depth"] - depth))
    return Blueprint(
        nearest,
        {
            "img_size": [side * PATCH, side * PATCH],
            "embed_dim": width,
            "depth": depth,
            "num_heads": fitting_heads(width, heads),
            "num_classes": len(state["head.weight"]) if "head.weight" in state else 0,
        },
    )
