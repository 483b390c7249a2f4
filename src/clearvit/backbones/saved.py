"""What clearvit saves: a directory that plain timm loads, plus what timm cannot say."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from clearvit.backbones.blueprint import Blueprint, build_with, load_exactly
from clearvit.backbones.clip_heads import STD, DenseClip, dense_clip
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.output import FINE_HEAD, FINE_RULE, OutputSteps, load_head
from clearvit.backbones.positions import RULES as POSITION_RULES
from clearvit.backbones.positions import check_rule
from clearvit.backbones.preprocessing import RULE as PREPROCESSING_RULE
from clearvit.backbones.preprocessing import preprocessing_from
from clearvit.backbones.vit import VitBackbone, is_vit
from clearvit.errors import ModelError
from clearvit.files import read_json, read_tensors, write_json, written_whole
from clearvit.options import ClipHead, PositionRule, choices_of
from clearvit.runs import claim_files
from clearvit.schema import (
    Rule,
    flag,
    list_of,
    mapping_of,
    number,
    one_of,
    read_checked,
    table,
    text,
    whole,
)

WEIGHTS, TIMM_CONFIG, OWN_CONFIG = "model.safetensors", "config.json", "clearvit.json"
FORMAT = 1

_STEPS: dict[str, Rule] = {
    "directions": whole(0, 1 << 16),
    "smooth": flag,
    "seed": whole(-(1 << 63), (1 << 63) - 1),
}
RULES: dict[str, Rule] = {  # of OWN_CONFIG; the blueprint checks its own arguments
    "format": one_of(FORMAT),
    "source": text,
    "positions": one_of(*POSITION_RULES),
    "preprocessing": PREPROCESSING_RULE,
    "blueprint": table(
        {
            "architecture": text,
            "arguments": lambda value: "" if isinstance(value, dict) else "an object was expected",
            "epsilon": lambda value: "",
        },
        optional=("arguments", "epsilon"),
    ),
    "neurons": mapping_of(list_of(whole(0, 1 << 20), 0, 1 << 20), 512),
    "spare_class": flag,
    "output": table(_STEPS),
    "fine": FINE_RULE,
    "embedding": whole(1, 1 << 16),
    "head": one_of(*choices_of(ClipHead)),
    "std": number(1e-6, 1e6),
}
OPTIONAL = ("source", "neurons", "spare_class", "output", "fine", "embedding", "head", "std")

# Backbones of packages above: the file that marks them, and the function that loads them. Names,
# not imports: this package imports none of those.
MARKED = {
    "pruned.json": "clearvit.pruning.pruned_files:load_pruned",
    "denoised.json": "clearvit.views.denoised:load_denoised",
}
MODEL_FILES = (WEIGHTS, TIMM_CONFIG, OWN_CONFIG, FINE_HEAD, *MARKED)


def save(backbone: VitBackbone, out: str | Path, *, kind: str = "model") -> Path:
    """Write weights and configuration to a directory.

    `clearvit.load("dir:OUT")` restores the backbone exactly;
    `timm.create_model("local-dir:OUT", pretrained=True)` loads the same network without clearvit.

    A `NeuronBackbone`, or a backbone with steps after the final norm, gets no timm configuration:
    timm runs the network but not the edit, so it would load silently and give other tokens; nor
    does an LV-ViT, which timm does not have. A
    `DenseClip` is saved as its plain network: clearvit puts the head back on, timm has plain CLIP.
    A head for fine tokens lies in a file of its own; timm loads the network without it.

    Args:
        backbone: What to save.
        out: The directory. A model there is replaced if it was saved by the same verb; what others
            wrote is refused.
        kind: Which verb saves, such as "cure".
    """
    own = getattr(backbone, "save", None)  # backbones of packages above save themselves
    if own is not None:
        return own(out, kind=kind)  # type: ignore[no-any-return]
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
    claim_files(folder, MODEL_FILES, kind=kind, strict=False)
    for marker in MARKED:
        (folder / marker).unlink(missing_ok=True)  # of a model saved there before
    with written_whole(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    if isinstance(plain, NeuronBackbone) or plain.output is not None or not blueprint.in_timm:
        (folder / TIMM_CONFIG).unlink(missing_ok=True)  # of a model saved there before
    else:
        write_json(folder / TIMM_CONFIG, _timm_config(plain, blueprint))
    config = _own_config(plain, blueprint)
    if plain.fine is None:
        (folder / FINE_HEAD).unlink(missing_ok=True)  # of a model saved there before
    else:
        config["fine"] = plain.fine.save(folder)
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
    marker = folder / OWN_CONFIG
    config = read_checked(marker, RULES, error=ModelError, version="format", optional=OPTIONAL)
    blueprint = Blueprint(**config["blueprint"])
    network = build_with(blueprint, read_tensors(folder / WEIGHTS, ModelError), str(folder))
    if not is_vit(network):
        raise ModelError(f"'{folder}' names '{blueprint.architecture}', which is no ViT.")
    backbone = VitBackbone(
        network,
        preprocessing_from(config["preprocessing"]),
        name=f"dir:{folder}",
        positions=positions or check_rule(config["positions"]),
        blueprint=blueprint,
    )
    if "neurons" in config:
        units = config["neurons"].items()
        if not all(block.isdecimal() and int(block) < backbone.depth for block, _ in units):
            raise ModelError(f"'{folder / OWN_CONFIG}' lists neurons of a block that is not there.")
        neurons = {int(block): torch.tensor(listed) for block, listed in units}
        backbone = NeuronBackbone(backbone, neurons, spare_class=config.get("spare_class", True))
    if "output" in config:
        backbone.output = OutputSteps(**config["output"])
    if "fine" in config:
        backbone.fine = load_head(folder, config["fine"], backbone.width)
    if "embedding" in config:
        backbone.embedding = _check_embedding(backbone, config["embedding"], folder)
    if "head" not in config:
        return backbone
    return dense_clip(backbone, config["head"], std=config.get("std", STD))


def _check_embedding(backbone: VitBackbone, channels: int, folder: Path) -> int:
    """Refuse a projection that the weights do not hold."""
    if getattr(backbone.network.head, "out_features", 0) != channels:
        raise ModelError(f"'{folder / OWN_CONFIG}' names a projection that the weights lack.")
    return channels


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
    if backbone.embedding:
        config["embedding"] = backbone.embedding
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


def _read(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        raise ModelError(f"'{path.parent}' holds no model: {path.name} is missing.")
    return read_json(path, ModelError)
