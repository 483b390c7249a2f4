"""timm models: by name, from the hub, a directory, a checkpoint file, or as an nn.Module."""

from __future__ import annotations

from typing import Any

from torch import nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import blueprint_of
from clearvit.backbones.grid import timm_grid
from clearvit.backbones.guarded_timm import resolve_model_data_config, timm
from clearvit.backbones.preprocessing import RESAMPLING, Preprocessing
from clearvit.backbones.sources.checkpoint_file import split_name
from clearvit.backbones.sources.hub import check_reachable
from clearvit.backbones.sources.timm_checkpoint import load_timm_file
from clearvit.backbones.vit import VitBackbone, is_vit
from clearvit.errors import ModelError, closest
from clearvit.options import PositionRule


def load_timm(name: str, positions: PositionRule | None = None) -> Backbone:
    """Load a model by timm's own grammar, or with the weights of a file.

    Args:
        name: `arch.tag`, `hf-hub:id`, `local-dir:path`, or `arch@file` with a checkpoint file
            (.safetensors, .pth) of a training of your own.
        positions: Rule for resizing position embeddings; else timm's own.
    """
    architecture, file = split_name(name)
    if file is not None:
        if not timm.is_model(architecture.partition(".")[0]):
            near = closest(architecture, timm.list_models())
            raise ModelError(f"timm has no architecture '{architecture}'.{near}")
        return load_timm_file(architecture, file, positions)
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        _check_name(name)
    try:
        if repository := _repository(name):
            check_reachable(repository)
        network = _create(name)
    except Exception as error:  # timm passes on whatever hub, disk and torch raise
        raise ModelError(
            f"timm could not load '{name}': {error}\nWithout a network, put the weights in a"
            " directory and use 'timm:local-dir:PATH', or start with the model 'demo'."
        ) from error
    return wrap_timm(network, name=f"timm:{name}", positions=positions)


def wrap_timm(network: nn.Module, *, name: str, positions: PositionRule | None = None) -> Backbone:
    """Make a Backbone of a timm network."""
    preprocessing = preprocessing_of(network)
    if not is_vit(network):
        return timm_grid(network, preprocessing, name=name)
    return VitBackbone(
        network,
        preprocessing,
        name=name,
        positions=positions or "bicubic-antialias",
        blueprint=blueprint_of(network, name) if getattr(network, "pretrained_cfg", None) else None,
    )


def preprocessing_of(network: Any) -> Preprocessing:
    """Read off the preprocessing that timm keeps with a network."""
    config = resolve_model_data_config(network)
    _, height, width = config["input_size"]
    built_for = getattr(getattr(network, "patch_embed", None), "img_size", None)
    interpolation = config["interpolation"]
    return Preprocessing(
        size=tuple(built_for) if built_for else (height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=interpolation if interpolation in RESAMPLING else "bicubic",
    )


def _repository(name: str) -> str | None:
    """Name the repository of the hub that holds the weights, if it is there that they are."""
    if name.startswith(("hf-hub:", "hf_hub:")):
        return name[7:].partition("@")[0]
    config = None if name.startswith("local-dir:") else timm.get_pretrained_cfg(name)
    return getattr(config, "hf_hub_id", None)


def _create(name: str) -> nn.Module:
    """Create the network for any image size, in the words its architecture knows."""
    for any_size in ({"strict_img_size": False}, {"dynamic_img_size": True}):
        try:
            return timm.create_model(name, pretrained=True, **any_size)  # type: ignore[no-any-return]
        except TypeError:  # raised by the constructor, before anything is downloaded
            continue
    return timm.create_model(name, pretrained=True)  # type: ignore[no-any-return]


def _check_name(name: str) -> None:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ModelError(f"timm has no model '{name}'.{closest(name, timm.list_models())}")
    tagged = timm.list_pretrained(f"{architecture}.*") + timm.list_pretrained(architecture)
    known = [model for model in tagged if model.partition(".")[0] == architecture]
    if not known:
        raise ModelError(
            f"timm has no pretrained weights for '{name}'. Name a checkpoint file of your own:"
            f" 'timm:{architecture}@FILE.safetensors'."
        )
    if tag and name not in known:
        raise ModelError(f"'{architecture}' has no weights '{tag}'; there are: {', '.join(known)}.")
