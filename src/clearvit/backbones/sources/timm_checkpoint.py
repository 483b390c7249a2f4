"""A timm architecture with the weights of a checkpoint file: `timm:ARCH@FILE`.

The layouts of timm's trainer, DINO, DINOv2, MAE, DeiT, lightly and plain state dicts are recognized
by the names of their tensors. What pretraining leaves beside the encoder is passed over and
counted; any other difference is an error that lists the keys.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import compare_state, load_exactly
from clearvit.backbones.guarded_timm import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    Eva,
    VisionTransformer,
    timm,
)
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.checkpoint_file import (
    Checkpoint,
    Weights,
    count_modules,
    read_checkpoint,
)
from clearvit.errors import ModelError
from clearvit.options import PositionRule
from clearvit.schema import list_of, number

FIRST = "patch_embed.proj.weight"
MOST_CLASSES, LARGEST = 1_000_000, 65536  # rows of a classifier, pixels of a side
LEFTOVERS = re.compile(  # of pretraining, beside the encoder
    r"decoder|mask_token$|head\.(mlp|last_layer|layers)|(pred|predictor|proj|projection_head"
    r"|projector|dino_head|ibot_head|lm_head|teacher_head|student_head|pre_logits|local_cls_norm)\."
)
CHUNKED = re.compile(r"^blocks\.\d+\.(\d+)\.")  # DINOv2 cuts the blocks into chunks for FSDP
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1536: "giant"}
_THREE = list_of(number(1e-4, 10), 3, 3)


def load_timm_file(name: str, file: Path, positions: PositionRule | None) -> Backbone:
    """Build an architecture of timm, `arch` or `arch.tag`, with the weights of a file.

    The tag says only how pixels are normalized. Position embeddings keep the size of the file.
    """
    from clearvit.backbones.sources.timm import wrap_timm

    checkpoint = read_checkpoint(file)
    with torch.device("meta"):
        outline = create_untrained(name)
    found = checkpoint.find(_first_layer(outline))
    state, dropped = _without_leftovers(found.state)
    _check_outline(outline, state, name, file)
    options = _options_from(state, outline)
    with torch.device("meta"):
        outline = create_untrained(name, options)
    label = f"timm:{name}@{file}"
    state = _to_timm_names(state, outline)
    compare_state(outline.state_dict(), state, label)  # before any memory is used
    network = create_untrained(name, options)
    load_exactly(network, state, label)
    network.eval()
    backbone = wrap_timm(network, name=label, positions=positions)
    backbone.preprocessing = _preprocessing(backbone.preprocessing, name, checkpoint)
    backbone.note = _describe(checkpoint, found, dropped, backbone.preprocessing)
    return backbone


def create_untrained(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Create a network for any image size, in the words its architecture knows."""
    given = dict(options or {})
    for any_size in ({"strict_img_size": False}, {"dynamic_img_size": True}, {}):
        try:
            return timm.create_model(name, pretrained=False, **given, **any_size)
        except TypeError:  # raised by the constructor
            continue
    raise ModelError(f"timm cannot build '{name}' with {given}.")


def _first_layer(outline: Any) -> str:
    first = outline.pretrained_cfg.get("first_conv") or FIRST.removesuffix(".weight")
    return f"{first if isinstance(first, str) else first[0]}.weight"


def _without_leftovers(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Leave out what only pretraining needs; DINOv2's own names need its mask token, though."""
    decoder = any("decoder" in key for key in state)
    kept = {
        CHUNKED.sub(r"blocks.\1.", key): tensor
        for key, tensor in state.items()
        if not LEFTOVERS.match(key) or (key == "mask_token" and not decoder)
    }
    dropped = len(state) - len(kept)
    return kept, dropped + ("mask_token" in kept)


def _options_from(state: Mapping[str, Tensor], outline: Any) -> dict[str, Any]:
    """Read from the weights what a training commonly changes: classes, size, pooling, registers."""
    classifier = outline.pretrained_cfg.get("classifier") or "head"
    first = classifier if isinstance(classifier, str) else classifier[0]
    head = state.get(f"{first}.weight")
    options: dict[str, Any] = {"num_classes": 0 if head is None else len(head)}
    if not isinstance(outline, (VisionTransformer, Eva)):
        return options
    own = outline.state_dict()
    if "fc_norm.weight" in state and "norm.weight" not in state:
        options["global_pool"] = "avg"
    elif "norm.weight" in state and "norm.weight" not in own:
        options["global_pool"] = "token"
    side = _side(state, outline)
    if side is not None and [side, side] != list(outline.patch_embed.img_size):
        options["img_size"] = side
    return options


def _side(state: Mapping[str, Tensor], outline: Any) -> int | None:
    """Tell for which square image, in pixels, the position embeddings were trained."""
    table = state.get("pos_embed")
    if table is None or table.ndim != 3 or outline.pos_embed is None:
        return None
    prefix = 0 if outline.no_embed_class else outline.num_prefix_tokens
    if "register_tokens" in state:  # of DINOv2, where the class token alone has a position
        prefix = 1
    count = table.shape[1] - prefix
    root = math.isqrt(max(count, 0))
    height, width = outline.patch_embed.patch_size
    fits = root > 0 and root * root == count and height == width and root * height <= LARGEST
    return root * height if fits else None


def _to_timm_names(state: dict[str, Tensor], outline: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of the official repositories, by timm's own tables."""
    if not isinstance(outline, (VisionTransformer, Eva)):
        return state
    from timm.models import eva, vision_transformer

    if isinstance(outline, Eva):
        renamed: dict[str, Tensor] = eva.checkpoint_filter_fn(state, outline)
        return renamed
    scaled = "blocks.0.gamma_1" in state  # DeiT III
    renamed = vision_transformer.checkpoint_filter_fn(state, outline, adapt_layer_scale=scaled)
    return renamed


def _check_outline(outline: Any, state: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Say in words that a file belongs to another architecture, before keys are compared."""
    weight, own = state.get(FIRST), getattr(getattr(outline, "patch_embed", None), "proj", None)
    if weight is None or own is None or not isinstance(outline, (VisionTransformer, Eva)):
        return
    patch = tuple(weight.shape[2:]) if weight.ndim == 4 else tuple(own.weight.shape[2:])
    differences = [
        f"{word} {theirs} in the file, {ours} in the architecture"
        for word, theirs, ours in (
            ("channels:", weight.shape[0], own.weight.shape[0]),
            ("pixels of a patch:", patch[0], own.weight.shape[2]),
            ("blocks:", count_modules(state), len(outline.blocks)),
        )
        if theirs != ours
    ]
    if differences:
        size = SIZES.get(weight.shape[0])
        guess = f" Perhaps 'timm:vit_{size}_patch{patch[0]}_224@{file}'?" if size else ""
        raise ModelError(
            f"'{file}' does not fit '{name}' ({'; '.join(differences)}).{guess} 'clearvit"
            " models vit' lists the architectures."
        )


def _preprocessing(found: Preprocessing, name: str, checkpoint: Checkpoint) -> Preprocessing:
    """Normalize as the training did where the file says so; else as the tag of the name says."""
    mean, std = checkpoint.settings.get("mean"), checkpoint.settings.get("std")
    if mean is not None and std is not None and not _THREE(mean) and not _THREE(std):
        return dataclasses.replace(found, mean=tuple(mean), std=tuple(std))
    if "." in name or _layout(checkpoint) is None:
        return found
    mean, std = tuple(IMAGENET_DEFAULT_MEAN), tuple(IMAGENET_DEFAULT_STD)
    return dataclasses.replace(found, mean=mean, std=std)


def _layout(checkpoint: Checkpoint) -> str | None:
    """Name a self-supervised training by what it leaves; all of them use ImageNet's mean."""
    keys = list(checkpoint.tensors)
    if any("decoder" in key for key in keys):
        return "MAE"
    if any("teacher" in key or "dino" in key or key.endswith("mask_token") for key in keys):
        return "DINO"
    return None


def _describe(
    checkpoint: Checkpoint, found: Weights, dropped: int, preprocessing: Preprocessing
) -> str:
    where = f"tensors under '{found.prefix}'" if found.prefix else "tensors at the top"
    text = f"'{checkpoint.path}': {where}"
    if layout := _layout(checkpoint):
        text += f" ({layout} layout)"
    if found.others:
        text += f"; passed over: {', '.join(repr(one) for one in found.others[:3])}"
    if dropped:
        text += f"; {dropped} of pretraining left out"
    mean = ", ".join(f"{value:.3g}" for value in preprocessing.mean)
    std = ", ".join(f"{value:.3g}" for value in preprocessing.std)
    return f"{text}; pixels are normalized with mean {mean} and std {std}."
