"""Official DynamicViT checkpoints (Rao et al., NeurIPS 2021), of DeiT networks."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.sources.timm import preprocessing_of
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.pruning.config import Fill
from clearvit.pruning.modules import Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan

PREDICTORS = "score_predictor."
HEAD_WIDTHS = (64, 32, 16, 8)  # DeiT has 64 channels per head; a checkpoint does not say


def import_dynamicvit(
    path: str | Path,
    keep: float | Sequence[float] = 0.7,
    *,
    heads: int | None = None,
    fill: Fill = "similar",
) -> PrunedBackbone:
    """Load a DynamicViT checkpoint of a DeiT, with its trained predictors.

    `pruned.network.head(pruned.tokens(images).cls)` gives the logits.

    Args:
        path: The official .pth file (only tensors are read from it) or a .safetensors file with
            the same names.
        keep: The fraction it was trained for, 0.7 for 0.7, 0.49, 0.343, or one for each stage.
        heads: Attention heads; else 64 channels for each, or 32, 16, 8 where 64 does not divide.
        fill: What a dropped patch shows on the full grid.
    """
    state = _read_state(Path(path))
    learned = {
        key.removeprefix(PREDICTORS): t for key, t in state.items() if key.startswith(PREDICTORS)
    }
    plain = {key: t for key, t in state.items() if not key.startswith(PREDICTORS)}
    _check_deit(plain, learned, str(path))
    blueprint = _blueprint(plain, heads)
    network = blueprint.build()
    load_exactly(network, plain, str(path))
    predictors = Predictors(network.embed_dim, _count_modules(learned, r"(\d+)\."))  # type: ignore[arg-type]
    load_exactly(predictors, learned, str(path))
    dense = VitBackbone(
        network, preprocessing_of(network), name=f"dynamicvit:{path}", blueprint=blueprint
    )
    stages = [dense.depth * (s + 1) // (len(predictors) + 1) for s in range(len(predictors))]
    plan = make_plan(dense.depth, keep=keep, stages=stages, scorer=None, fill=fill)
    return PrunedBackbone(dense, plan, predictors)


def _read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict; of a pickle nothing but tensors and plain values."""
    if not path.is_file():
        raise ModelError(f"there is no checkpoint '{path}'.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DeiT keeps its options
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"cannot read '{path}' as a state dict: {error}\nIt must hold tensors only. If you"
            " trust the file, load it yourself and save its state dict with safetensors."
        ) from error
    for name in ("model", "state_dict"):
        content = content.get(name, content) if isinstance(content, Mapping) else content
    if not isinstance(content, Mapping) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ModelError(f"'{path}' holds no state dict, neither at its top nor under 'model'.")
    return dict(content)


def _check_deit(plain: Mapping[str, Tensor], learned: Mapping[str, Tensor], path: str) -> None:
    needed = ("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight")
    missing = [name for name in needed if name not in plain]
    if not learned:
        missing.append(f"{PREDICTORS}*")
    if missing:
        raise ModelError(
            f"'{path}' is no DynamicViT checkpoint of a DeiT: it has no {', '.join(missing)}."
            " DeiT-T, DeiT-256, DeiT-S and DeiT-B can be imported; LV-ViT, ConvNeXt and Swin are"
            " other architectures."
        )


def _blueprint(state: Mapping[str, Tensor], heads: int | None) -> Blueprint:
    patch = state["patch_embed.proj.weight"].shape
    width = patch[0]
    fitting = next((width // size for size in HEAD_WIDTHS if width % size == 0), 1)
    if heads is not None and (heads < 1 or width % heads):
        raise ModelError(f"heads is {heads}; it must divide the {width} channels.")
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
    return Blueprint(
        "deit_tiny_patch16_224",
        {
            "img_size": [side * patch[2], side * patch[3]],
            "patch_size": [patch[2], patch[3]],
            "embed_dim": width,
            "depth": _count_modules(state, r"blocks\.(\d+)\."),
            "num_heads": heads or fitting,
            "num_classes": len(state["head.weight"]) if "head.weight" in state else 0,
        },
    )


def _count_modules(keys: Mapping[str, Tensor], pattern: str) -> int:
    """Count modules by the highest number in their keys."""
    found = [re.match(pattern, key) for key in keys]
    return 1 + max((int(match[1]) for match in found if match), default=-1)
