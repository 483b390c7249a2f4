"""Official DynamicViT checkpoints (Rao et al., NeurIPS 2021), of DeiT and LV-ViT networks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, build_with, load_exactly
from clearvit.backbones.sources.checkpoint_file import (
    count_modules,
    fitting_heads,
    read_checkpoint,
)
from clearvit.backbones.sources.lvvit import (
    ANCHOR,
    PREDICTORS,
    describe_lvvit,
    is_lvvit,
    wrap_lvvit,
)
from clearvit.backbones.sources.timm import preprocessing_of
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.pruning.config import Fill
from clearvit.pruning.modules import Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan

STAGES = re.compile(r"(\d+)\.")
MOST_STAGES = 512


def import_dynamicvit(
    path: str | Path,
    keep: float | Sequence[float] = 0.7,
    *,
    heads: int | None = None,
    fill: Fill = "similar",
) -> PrunedBackbone:
    """Load a DynamicViT checkpoint of a DeiT or LV-ViT, with its trained predictors.

    `pruned.network.head(pruned.tokens(images).cls)` gives the logits of the class token.

    Args:
        path: The official .pth file (only tensors are read from it) or a .safetensors file with
            the same names.
        keep: The fraction it was trained for, 0.7 for 0.7, 0.49, 0.343, or one for each stage.
        heads: Attention heads; else 64 channels for each, or 32, 16, 8 where 64 does not divide.
        fill: What a dropped patch shows on the full grid.
    """
    state = read_checkpoint(Path(path)).find(ANCHOR).state
    learned = {
        key.removeprefix(PREDICTORS): t for key, t in state.items() if key.startswith(PREDICTORS)
    }
    plain = {key: t for key, t in state.items() if not key.startswith(PREDICTORS)}
    dense = _dense(plain, learned, str(path), heads)
    predictors = Predictors(dense.width, min(MOST_STAGES, count_modules(learned, STAGES)))
    load_exactly(predictors, learned, str(path))
    stages = [dense.depth * (s + 1) // (len(predictors) + 1) for s in range(len(predictors))]
    plan = make_plan(dense.depth, keep=keep, stages=stages, scorer=None, fill=fill)
    return PrunedBackbone(dense, plan, predictors)


def _dense(
    plain: Mapping[str, Tensor], learned: Mapping[str, Tensor], path: str, heads: int | None
) -> VitBackbone:
    """The network without its predictors."""
    name = f"dynamicvit:{path}"
    if is_lvvit(plain) and learned:
        return wrap_lvvit(describe_lvvit(plain, path, heads), plain, name=name)
    _check_deit(plain, learned, path)
    blueprint = _blueprint(plain, heads)
    network = build_with(blueprint, plain, path)
    return VitBackbone(network, preprocessing_of(network), name=name, blueprint=blueprint)


def _check_deit(plain: Mapping[str, Tensor], learned: Mapping[str, Tensor], path: str) -> None:
    needed = ("cls_token", "pos_embed", "patch_embed.proj.weight", ANCHOR)
    missing = [name for name in needed if name not in plain]
    if not learned:
        missing.append(f"{PREDICTORS}*")
    if missing:
        raise ModelError(
            f"'{path}' is no DynamicViT checkpoint of a DeiT or LV-ViT: it has no"
            f" {', '.join(missing)}. ConvNeXt and Swin keep all their patches and cannot be"
            " imported."
        )


def _blueprint(state: Mapping[str, Tensor], heads: int | None) -> Blueprint:
    patch = state["patch_embed.proj.weight"].shape
    width = patch[0]
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
    return Blueprint(
        "deit_tiny_patch16_224",
        {
            "img_size": [side * patch[2], side * patch[3]],
            "patch_size": [patch[2], patch[3]],
            "embed_dim": width,
            "depth": count_modules(state),
            "num_heads": fitting_heads(width, heads),
            "num_classes": len(state["head.weight"]) if "head.weight" in state else 0,
        },
    )
