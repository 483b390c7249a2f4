"""What clearvit saves: a directory that plain timm loads, plus what timm cannot say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.clip_heads import DenseClip, dense_clip
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.output import OutputSteps
from clearvit.backbones.positions import check_rule
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.files import write_json, written_whole
from clearvit.options import PositionRule

WEIGHTS, TIMM_CONFIG, OWN_CONFIG = "model.safetensors", "config.json", "clearvit.json"
FORMAT = 1

# Backbones of packages above: the file that marks them, and the function that loads them. Names,
# not imports: this package imports none of those.
MARKED = {"pruned.json": "clearvit.pruning.pruned_files:load_pruned"}


def save(backbone: VitBackbone, out: str | Path) -> Path:
    """Write weights and configuration to a directory.

    `clearvit.load("dir:OUT")` restores the backbone exactly;
    `timm.create_model("local-dir:OUT", pretrained=True)` loads the same network without clearvit.

    A `NeuronBackbone`, or a backbone with steps after the final norm, gets no timm configuration:
    timm runs the network but not the edit, so it would load silently and give other tokens. A
    `DenseClip` is saved as its plain network: clearvit puts the head back on, timm has plain CLIP.
    """
    own = getattr(backbone, "save", None)  # backbones of packages above save themselves
    if own is not None:
        return own(out)  # type: ignore[no-any-return]
    plain = backbone.plain if isinstance(backbone, DenseClip) else backbone
    blueprint = backbone.blueprint
    if blueprint is None:
        raise ModelError(
            f"'{backbone.name}' cannot be saved: its architecture is not known to timm. Save the"
            " model it was made of."
        )
    state = {key: t.detach().cpu().contiguous() for key, t in backbone.network.state_dict().items()}
    load_exactly(blueprint.build(), state, backbone.name)  # refuse what could not be loaded again
    folder = Path(out)
    for marker in MARKED:
        (folder / marker).unlink(missing_ok=True)  # of a model saved there before
    with written_whole(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    if isinstance(plain, NeuronBackbone) or plain.output is not None:
        (folder / TIMM_CONFIG).unlink(missing_ok=True)  # of a model saved there before
    else:
        write_json(folder / TIMM_CONFIG, _timm_config(plain, blueprint))
    config = _own_config(plain, blueprint)
    if isinstance(backbone, DenseClip):
        config |= {"head": backbone.head, "std": backbone.std}
    write_json(folder / OWN_CONFIG, config)
    return folder


def load_saved(path: str | Path, positions: PositionRule | None = None) -> VitBackbone:
    """Load what `save` wrote, a pruned model without its pruning."""
    folder = Path(path)
    if not (folder / OWN_CONFIG).is_file():
        hint = "timm:local-dir:" if "architecture" in _read(folder / TIMM_CONFIG) else "hf:"
        raise ModelError(
            f"'{folder}' was not saved by clearvit (no {OWN_CONFIG}). Try '{hint}{folder}'."
        )
    config = _read(folder / OWN_CONFIG)
    if config.get("format") != FORMAT:
        raise ModelError(f"'{folder}' was saved by another version of clearvit; update clearvit.")
    blueprint = Blueprint(**config["blueprint"])
    network = blueprint.build()
    try:
        load_exactly(network, load_file(folder / WEIGHTS), str(folder))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read '{folder / WEIGHTS}': {error}") from error
    backbone = VitBackbone(
        network,
        _preprocessing(config["preprocessing"]),
        name=f"dir:{folder}",
        positions=positions or check_rule(config["positions"]),
        blueprint=blueprint,
    )
    if "neurons" in config:
        neurons = {int(block): torch.tensor(units) for block, units in config["neurons"].items()}
        backbone = NeuronBackbone(backbone, neurons, spare_class=config["spare_class"])
    if "output" in config:
        backbone.output = OutputSteps(**config["output"])
    return dense_clip(backbone, config["head"], std=config["std"]) if "head" in config else backbone


def _own_config(backbone: VitBackbone, blueprint: Blueprint) -> dict[str, Any]:
    config = {
        "format": FORMAT,
        "source": backbone.name,
        "positions": backbone.positions,
        "preprocessing": dataclasses.asdict(backbone.preprocessing),
        "blueprint": dataclasses.asdict(blueprint),
    }
    if isinstance(backbone, NeuronBackbone):
        config["neurons"] = {str(b): units.tolist() for b, units in backbone.neurons.items()}
        config["spare_class"] = backbone.spare_class
    if backbone.output is not None:
        directions, smooth, seed = backbone.output.settings()
        config["output"] = {"directions": directions, "smooth": smooth, "seed": seed}
    return config


def _timm_config(backbone: VitBackbone, blueprint: Blueprint) -> dict[str, Any]:
    preprocessing = backbone.preprocessing
    arguments = dict(blueprint.arguments)
    return {
        "architecture": blueprint.architecture,
        "num_classes": backbone.network.num_classes,
        "num_features": backbone.width,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, *preprocessing.size],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "interpolation": preprocessing.interpolation,
            "num_classes": backbone.network.num_classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }


def _preprocessing(config: dict[str, Any]) -> Preprocessing:
    lists: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in config.items()
    }
    return Preprocessing(**lists)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"'{path.parent}' holds no model: {path.name} is missing.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error
    return content if isinstance(content, dict) else {}
