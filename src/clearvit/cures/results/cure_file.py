"""The cure file: what a low-rank cure changed, in a few megabytes, for the same base elsewhere.

It is safetensors: numbers and JSON, no code. Files may come from strangers, so the size is bounded,
and the base, every name, every shape and every number format are checked before a tensor is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.clip_heads import DenseClip, dense_clip
from clearvit.backbones.sources.hub import check_reachable
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.results.cure_report import CureReport
from clearvit.cures.results.weight_change import WeightChange, base_fingerprint
from clearvit.errors import ModelError
from clearvit.files import written_whole

FILE = "cure.safetensors"
KIND, FORMAT = "cure", "1"
MAX_BYTES = 500_000_000  # 40 times what rank 16 makes of ViT-g
MAX_REGISTERS, MAX_TEXT = 256, 2_000_000
DTYPES = ("F16", "BF16", "F32")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def write_cure_file(
    path: Path, change: WeightChange, base: VitBackbone, config: CureConfig, report: CureReport
) -> None:
    """Write a change with its base's fingerprint, the options of the training and its report."""
    recipe = {k: v for k, v in dataclasses.asdict(config).items() if k != "targets_dir"}
    facts = report.to_json() | {"skipped": []}  # names of files are nobody else's business
    metadata = {
        "clearvit": KIND,
        "format": FORMAT,
        "base": base_fingerprint(base),
        "base_name": base.name,
        "head": base.head if isinstance(base, DenseClip) else "",
        "recipe": json.dumps(recipe),
        "report": json.dumps(facts),
    }
    tensors = {name: tensor.contiguous() for name, tensor in change.tensors()}
    with written_whole(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
        sort_metadata(temporary)


def sort_metadata(path: Path) -> None:
    """Write the metadata of a file of safetensors in order: the library leaves it to chance."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) <= length:  # else it is written in another way; the order is not worth more
            file.seek(8)
            file.write(text.ljust(length))


def apply(backbone: Backbone, cure: str | Path) -> VitBackbone:
    """Return a copy of a model with a cure that was trained for it elsewhere.

    Args:
        backbone: The model that the cure was made for; it is left as it was.
        cure: A `cure.safetensors`, the directory of a cure, or the id of a hub repository that
            holds one, such as "name/dinov2-small-cure".

    Returns:
        The cured model; its `report` is that of the training.

    Raises:
        ModelError: The cure was made for other weights, or the file is none or is damaged.
    """
    path = find_cure_file(cure)
    if not isinstance(backbone, VitBackbone):
        raise ModelError(f"'{backbone.name}' is no ViT; a cure changes the weights of a ViT.")
    _check_size(path)
    try:
        with safe_open(path, framework="pt") as file:
            facts = _read_facts(path, file.metadata() or {})
            base = _matching_base(backbone, facts, path)
            change = _read_change(path, file, base)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error
    cured = change.apply(base)
    cured.name = f"{backbone.name} (cured)"
    cured.report = facts["report"]
    return cured


def find_cure_file(cure: str | Path) -> Path:
    """Give the file that a path, a directory or a hub id stands for."""
    path = Path(cure).expanduser()
    if os.path.isdir(path):
        path = path / FILE
    if os.path.isfile(path):  # which is False for any name that cannot exist
        return path
    if not HUB_ID.fullmatch(str(cure)) or str(cure).endswith(".safetensors"):
        raise ModelError(
            f"'{path}' is not there. Give a {FILE}, the directory of a cure, or a hub id."
        )
    from huggingface_hub import hf_hub_download

    check_reachable(str(cure))
    try:
        return Path(hf_hub_download(str(cure), FILE))
    except Exception as error:  # the hub library passes on whatever its own libraries raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the hub has no {FILE} in '{cure}': {reason}") from error


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ModelError(
            f"'{path}' has {size / 1e6:.0f} MB; a cure file has a few, and more than"
            f" {MAX_BYTES // 10**6} are not read."
        )


def _read_facts(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if metadata.get("clearvit") != KIND:
        raise ModelError(f"'{path}' is no cure file of clearvit.")
    if metadata.get("format") != FORMAT:
        raise ModelError(f"'{path}' was written by another version of clearvit; update clearvit.")
    if sum(map(len, metadata.values())) > MAX_TEXT:
        raise ModelError(f"'{path}' is damaged: it holds too much text.")
    try:
        report = CureReport.from_json(json.loads(metadata["report"]))
        names = {key: metadata[key] for key in ("base", "base_name", "head")}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"'{path}' is damaged: its report cannot be read.") from error
    return {**names, "report": report}


def _matching_base(backbone: VitBackbone, facts: Mapping[str, Any], path: Path) -> VitBackbone:
    if base_fingerprint(backbone) != facts["base"]:
        raise ModelError(
            f"'{path}' is a cure of '{facts['base_name']}', and '{backbone.name}' has other"
            " weights; load the model that it was made for."
        )
    return dense_clip(backbone, facts["head"]) if facts["head"] else backbone


def _read_change(path: Path, file: Any, base: VitBackbone) -> WeightChange:
    """Check all names, shapes and number formats against the base, then read the numbers."""
    shapes = {}
    for key in file.keys():
        part = file.get_slice(key)
        if part.get_dtype() not in DTYPES:
            raise ModelError(f"'{path}' is damaged: '{key}' holds {part.get_dtype()}.")
        shapes[key] = tuple(part.get_shape())
    problem = _find_problem(shapes, base)
    if problem:
        raise ModelError(f"'{path}' does not fit '{base.name}': {problem}.")
    tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in shapes}
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise ModelError(f"'{path}' is damaged: it holds numbers that are not finite.")
    named = {kind: _of_kind(tensors, kind) for kind in ("up", "down", "difference")}
    products = {name: (up, named["down"][name]) for name, up in named["up"].items()}
    none = torch.empty(0, base.network.embed_dim)
    return WeightChange(products, named["difference"], tensors.get("registers", none))


def _find_problem(shapes: Mapping[str, tuple[int, ...]], base: VitBackbone) -> str:
    """Say what does not fit, or nothing."""
    registers = shapes.get("registers", (0, base.network.embed_dim))
    if len(registers) != 2 or registers[1] != base.network.embed_dim:
        return f"registers of shape {registers}"
    if registers[0] > MAX_REGISTERS or (registers[0] and "register" in base.prefix_names):
        return f"{registers[0]} registers"
    expected = {name: tuple(p.shape) for name, p in base.network.named_parameters()}
    if registers[0] and "pos_embed" in expected and not base.network.no_embed_class:
        rows = expected["pos_embed"][1] - ("class" in base.prefix_names)
        expected["pos_embed"] = (1, rows, base.network.embed_dim)
    for key, shape in shapes.items():
        kind, _, name = key.partition("/")
        own = expected.get(name, ())
        if key == "registers" or (kind == "difference" and own and shape == own):
            continue
        other = shapes.get(f"{'down' if kind == 'up' else 'up'}/{name}", ())
        if kind not in ("up", "down") or not own or not _is_factor(kind, shape, other, own):
            return f"'{key}' of shape {shape}"
    return ""


def _is_factor(
    kind: str, shape: tuple[int, ...], other: tuple[int, ...], weight: tuple[int, ...]
) -> bool:
    """Tell whether two shapes multiply to that of a weight, with a rank that makes sense."""
    if not len(shape) == len(other) == len(weight) == 2:
        return False
    (out, rank), (rows, inner) = (shape, other) if kind == "up" else (other, shape)
    return (out, inner) == weight and rank == rows and 1 <= rank <= min(weight)


def _of_kind(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{kind}/"): tensor
        for key, tensor in tensors.items()
        if key.startswith(f"{kind}/")
    }
