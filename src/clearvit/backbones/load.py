"""`cv.load`: one grammar of names for every source."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.hub import cached_if_offline
from clearvit.backbones.positions import PositionRule, check_rule
from clearvit.backbones.preprocessing import Size
from clearvit.errors import ModelError, closest

GRAMMAR = (
    "timm:NAME, timm:hf-hub:ID, timm:local-dir:PATH, hf:ID, hf:PATH, openclip:ARCH/TAG, dir:PATH,"
    " onnx:PATH, openvino:PATH, or demo"
)


def load(
    name: str | nn.Module | Backbone,
    *,
    size: int | Size | None = None,
    positions: PositionRule | None = None,
    device: str | torch.device | None = None,
) -> Backbone:
    """Load a pretrained backbone.

    Args:
        name: `timm:vit_small_patch14_dinov2.lvd142m`, `hf:facebook/dinov2-base`,
            `openclip:ViT-B-16/openai`, `dir:cured/`, `onnx:exported/`, `openvino:exported/`,
            `demo`, or a network created by timm.
        size: Default size of pictures in pixels, one number or (height, width); else the native.
        positions: Rule for resizing position embeddings; else the one of the source library.
        device: Where the weights go; the CPU by default.
    """
    rule = None if positions is None else check_rule(positions)
    backbone = name if isinstance(name, Backbone) else _from_source(name, rule)
    if size is not None:
        backbone = backbone.resized(size)
    return backbone if device is None else backbone.to(device)


def _from_source(name: str | nn.Module, rule: PositionRule | None) -> Backbone:
    if isinstance(name, nn.Module):
        from clearvit.backbones.timm import wrap_timm

        return wrap_timm(name, name=type(name).__name__, positions=rule)
    source, _, rest = name.partition(":")
    if name == "demo":
        from clearvit.backbones.demo import load_demo

        return load_demo(rule)
    if source == "dir" and rest:
        return _from_directory(Path(rest), rule)
    if source in ("onnx", "openvino") and rest:
        from clearvit.backbones.runtime import load_runtime

        if rule is not None:
            raise ModelError(f"'{name}' has its positions baked in; leave positions out.")
        return load_runtime(rest, "onnx" if source == "onnx" else "openvino")
    if source in ("timm", "hf", "openclip") and rest:
        on_disk = Path(rest).exists() or rest.startswith("local-dir:")
        with nullcontext() if on_disk else cached_if_offline():
            return _from_library(source, rest, rule)
    raise ModelError(f"'{name}' is no model name. {_hint(name)}The grammar: {GRAMMAR}.")


def _from_directory(folder: Path, rule: PositionRule | None) -> Backbone:
    from clearvit.backbones.runtime import CONFIG, load_runtime
    from clearvit.backbones.saved import MARKED, load_saved

    if (folder / CONFIG).is_file():
        return load_runtime(folder)
    for marker, loader in MARKED.items():
        if (folder / marker).is_file():
            module, _, function = loader.partition(":")
            found: Backbone = getattr(importlib.import_module(module), function)(folder, rule)
            return found
    return load_saved(folder, rule)


def _from_library(source: str, rest: str, rule: PositionRule | None) -> Backbone:
    if source == "timm":
        from clearvit.backbones.timm import load_timm

        return load_timm(rest, rule)
    if source == "hf":
        from clearvit.backbones.hf import load_hf

        return load_hf(rest, rule)
    from clearvit.backbones.openclip import load_openclip

    return load_openclip(rest, rule)


def _hint(name: str) -> str:
    """Guess what somebody meant who forgot or mistyped the prefix."""
    import timm

    if Path(name).is_dir():
        return f"For that directory use 'dir:{name}' (saved by clearvit) or 'hf:{name}'. "
    if timm.is_model(name.partition(".")[0]):
        return f"Did you mean 'timm:{name}'? "
    if "/" in name and ":" not in name:
        return f"Did you mean 'hf:{name}'? "
    source, colon, rest = name.partition(":")
    if colon:
        near = closest(source, ("timm", "hf", "openclip", "dir", "onnx", "openvino"))
        return f"There is no source '{source}:'.{near} " if rest else "Nothing follows the prefix. "
    near = closest(name, ["demo", *timm.list_models()])
    return near.strip() + " " if near else ""
