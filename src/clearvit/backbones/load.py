"""`cv.load`: one grammar of names for every source."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from torch import nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import check_finite
from clearvit.backbones.positions import check_rule
from clearvit.errors import ModelError, OptionError, closest
from clearvit.options import PositionRule, Size
from clearvit.schema import shorten

DEVICES = ("cpu", "cuda", "mps", "xpu")
GRAMMAR = (
    "timm:NAME, timm:ARCH@FILE, timm:hf-hub:ID, timm:local-dir:PATH, hf:ID, hf:PATH,"
    " openclip:ARCH/TAG, lvvit:ARCH@FILE, dir:PATH, onnx:PATH, openvino:PATH, demo or demo-cured"
)

CURE_FILES = "clearvit.cures.results.cure_file"
SHIPPED_CURE = Path(__file__).parent / "demo" / "cure.safetensors"
CURED_DEMO = "demo-cured"  # the demo model with that cure, where only a name can be given


def load(
    name: str | nn.Module | Backbone,
    *,
    size: int | Size | None = None,
    positions: PositionRule | None = None,
    device: str | torch.device | None = None,
    cure: str | Path | bool = False,
) -> Backbone:
    """Load a pretrained backbone.

    Args:
        name: `timm:vit_small_patch14_dinov2.lvd142m`, `timm:vit_base_patch16_224@best.pth` with a
            checkpoint file of your own, `hf:facebook/dinov2-base`, `openclip:ViT-B-16/openai`,
            `lvvit:lvvit_s@checkpoint.pth`, `dir:cured/`, `onnx:exported/`, `openvino:exported/`,
            `demo`, `demo-cured` (with the cure that ships), or a network created by timm.
        size: Default image size in pixels, one number or (height, width); else the native.
        positions: How to interpolate position embeddings; by default as the source library does.
        device: Where the weights go, such as "cuda:1"; "auto" takes a GPU if there is one. The CPU
            by default.
        cure: A cure that was trained for this model: a `cure.safetensors`, a directory or a hub id
            (see `clearvit.apply`). True takes the one that ships for "demo".
    """
    rule = None if positions is None else check_rule(positions)
    place = None if device is None else pick_device(device)  # before a long download
    if name == CURED_DEMO and cure is False:
        name, cure = "demo", True
    if isinstance(name, Backbone):
        backbone = name
    else:
        try:
            backbone = _from_source(name, rule)
        except OSError as error:
            reason = str(error.strerror or error).lower()
            raise ModelError(f"{shorten(name)} cannot be loaded: {reason}.") from error
        check_finite(backbone.network, backbone.name)
    if cure is not False:
        backbone = _apply_cure(backbone, name, cure)
    if size is not None:
        backbone = backbone.resized(size)
    return backbone if place is None else backbone.to(place)


def pick_device(device: str | torch.device) -> torch.device:
    """Turn "auto" into CUDA or MPS where there is one, else the CPU; check that others exist.

    Raises:
        OptionError: There is no such device here.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        chosen = torch.device("meta")  # which holds no values, so no device to work on
    if chosen.type not in DEVICES:
        shown = shorten(str(device))
        raise OptionError(f"device is {shown}; use {', '.join(DEVICES)}, cuda:1 or auto.", "device")
    try:
        torch.zeros(1, device=chosen)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")  # torch's goes on and on
        raise OptionError(
            f"device '{chosen}' is not there: {reason}. Use --device cpu, or --device auto, which"
            " takes a GPU if there is one.",
            "device",
        ) from error
    return chosen


def _apply_cure(backbone: Backbone, name: object, cure: str | Path | bool) -> Backbone:
    if cure is True:
        if name != "demo" or not SHIPPED_CURE.is_file():
            raise ModelError("a cure ships for 'demo' only; give the path or hub id of a cure.")
    # By name, not by import: this package knows nothing of those above.
    path = SHIPPED_CURE if cure is True else cure
    cured: Backbone = importlib.import_module(CURE_FILES).apply(backbone, path)
    cured.name = CURED_DEMO if cure is True else cured.name
    return cured


def _from_source(name: str | nn.Module, rule: PositionRule | None) -> Backbone:
    if isinstance(name, nn.Module):
        from clearvit.backbones.sources.timm import wrap_timm

        return wrap_timm(name, name=type(name).__name__, positions=rule)
    source, _, rest = name.partition(":")
    if name == "demo":
        from clearvit.backbones.demo.demo_weights import load_demo

        return load_demo(rule)
    if source == "dir" and rest:
        return _from_directory(Path(rest), rule)
    if source in ("onnx", "openvino") and rest:
        from clearvit.backbones.sources.runtime import load_runtime

        if rule is not None:
            raise ModelError(f"'{name}' has its positions baked in; leave positions out.")
        return load_runtime(rest, "onnx" if source == "onnx" else "openvino")
    if source in ("timm", "hf", "openclip", "lvvit") and rest:
        return _from_library(source, rest, rule)
    raise ModelError(f"{shorten(name)} is no model name. {_hint(name)}The grammar: {GRAMMAR}.")


def _from_directory(folder: Path, rule: PositionRule | None) -> Backbone:
    from clearvit.backbones.saved import MARKED, load_saved
    from clearvit.backbones.sources.runtime import CONFIG, load_runtime

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
        from clearvit.backbones.sources.timm import load_timm

        return load_timm(rest, rule)
    if source == "hf":
        from clearvit.backbones.sources.hf.load_hf import load_hf

        return load_hf(rest, rule)
    if source == "lvvit":
        from clearvit.backbones.sources.lvvit import load_lvvit

        return load_lvvit(rest, rule)
    from clearvit.backbones.sources.openclip import load_openclip

    return load_openclip(rest, rule)


def _hint(name: str) -> str:
    """Guess what somebody meant who forgot or mistyped the prefix."""
    from clearvit.backbones.guarded_timm import timm
    from clearvit.backbones.sources.checkpoint_file import SUFFIXES

    if Path(name).is_dir():
        return f"For that directory use 'dir:{name}' (saved by clearvit) or 'hf:{name}'. "
    if name.endswith(SUFFIXES):
        return (
            f"A checkpoint file needs its architecture: 'timm:vit_base_patch16_224@{name}'."
            " 'clearvit models vit_base' lists architectures. "
        )
    if timm.is_model(name.partition(".")[0]):
        return f"Did you mean 'timm:{name}'? "
    if "/" in name and ":" not in name:
        return f"Did you mean 'hf:{name}'? "
    source, colon, rest = name.partition(":")
    if colon:
        near = closest(source, ("timm", "hf", "openclip", "lvvit", "dir", "onnx", "openvino"))
        return f"There is no source '{source}:'.{near} " if rest else "Nothing follows the prefix. "
    near = closest(name, ["demo", CURED_DEMO, *timm.list_models()])
    return near.strip() + " " if near else ""
