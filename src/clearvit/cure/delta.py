"""A cured model as one small file: its registers and the tensors that training changed.

The rest comes from the original, which everybody can fetch. The class position of a model that
gets registers is folded into its class token; the file is measured against the folded original, so
nothing is stored that folding alone explains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.positions import check_rule
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.registers import with_registers
from clearvit.errors import ModelError
from clearvit.files import written_whole

FORMAT = "clearvit-delta-1"
REGISTERS = "reg_token"


def save_delta(original: VitBackbone, cured: VitBackbone, path: str | Path) -> Path:
    """Write what must be added to the original to get the cured model.

    Args:
        original: What was cured, unchanged.
        cured: The same network after the cure, with or without new registers.
        path: The safetensors file to write.
    """
    if cured.blueprint is None:
        raise ModelError(f"'{cured.name}' cannot be rebuilt: its architecture is not known.")
    if type(cured) is not VitBackbone:
        raise ModelError(
            f"'{cured.name}' is a {type(cured).__name__}: what it adds to the network at run time"
            " is no weight, so a delta cannot hold it. Give the plain network (`.plain` of a dense"
            " CLIP), or keep the whole with clearvit.save."
        )
    state = {key: t.detach().cpu() for key, t in cured.network.state_dict().items()}
    base = _base(original, state.get(REGISTERS))
    changed = {k: t.contiguous() for k, t in state.items() if k not in base or _differ(t, base[k])}
    load_exactly(cured.blueprint.build(), {**base, **changed}, cured.name)
    target = Path(path)
    with written_whole(target) as temporary:
        save_file(changed, temporary, metadata=_metadata(original, cured))
    return target


def apply_delta(original: VitBackbone, path: str | Path) -> VitBackbone:
    """Rebuild a cured model from its original and a file of `save_delta`, bit for bit."""
    changed, metadata = _read(Path(path))
    found = weights_digest(original.network.state_dict())
    if found != metadata["original"]:
        raise ModelError(
            f"'{path}' belongs to '{metadata['source']}' (weights {metadata['original'][:12]}), not"
            f" to '{original.name}' (weights {found[:12]}). Load that model and apply it there."
        )
    try:
        blueprint = Blueprint(**json.loads(metadata["blueprint"]))
        preprocessing = _preprocessing(json.loads(metadata["preprocessing"]))
    except (TypeError, ValueError) as error:
        raise ModelError(f"'{path}' is damaged: {error}. Write it again.") from error
    network = blueprint.build().to(original.dtype)
    load_exactly(network, {**_base(original, changed.get(REGISTERS)), **changed}, str(path))
    cured = original.around(network.to(original.device), blueprint)
    cured.positions = check_rule(metadata["positions"])
    cured.preprocessing = preprocessing
    return cured


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Hash weights alone: a model is the same original at whatever size it is used."""
    digest = hashlib.sha256()
    for key, tensor in sorted(state.items()):
        digest.update(f"{key}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _base(original: VitBackbone, registers: Tensor | None) -> dict[str, Tensor]:
    """Give the weights a cure starts from, (1, m, C) registers apart."""
    own = {key: t.detach().cpu() for key, t in original.network.state_dict().items()}
    if registers is None or REGISTERS in own:
        return own
    start = with_registers(original, registers[0]).network.state_dict()
    return {key: t.detach().cpu() for key, t in start.items() if key != REGISTERS}


def _differ(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    return not torch.equal(  # by bits: -0.0 is not 0.0, and NaN is itself
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def _metadata(original: VitBackbone, cured: VitBackbone) -> dict[str, str]:
    return {
        "format": FORMAT,
        "source": original.name,
        "original": weights_digest(original.network.state_dict()),
        "blueprint": json.dumps(dataclasses.asdict(cured.blueprint)),  # type: ignore[arg-type]
        "positions": cured.positions,
        "preprocessing": json.dumps(dataclasses.asdict(cured.preprocessing)),
    }


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ModelError(
                    f"'{path}' is no delta of this version of clearvit ({FORMAT}). A whole model"
                    " is loaded with clearvit.load('dir:…')."
                )
            return {key: file.get_tensor(key) for key in file.keys()}, metadata
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error


def _preprocessing(config: dict[str, Any]) -> Preprocessing:
    lists: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in config.items()
    }
    return Preprocessing(**lists)
