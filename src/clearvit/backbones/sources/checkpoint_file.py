"""Checkpoint files of trainers: which tensors they hold, and where among them the network is.

A file may come from a stranger: nothing but tensors and plain values is read from it
(`weights_only=True`), and no tensor may be larger than the bytes that the file has for it.
"""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.files import check_regular, read_tensors

SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".tar", ".pth.tar")
DEEPEST, MOST = 6, 200_000  # nesting and entries of a checkpoint
NOT_WEIGHTS = re.compile(r"optim|sched|scaler|callback|loops|loss|amp$|rng|hyper_param|config")
AVERAGED = {"ema", "teacher", "momentum", "target"}  # moving averages, which the papers evaluate
TRAINED = {"student", "online", "decoder", "predictor"}
HINTS = {  # a key of another library, and what loads its files
    "embeddings.patch_embeddings.projection.weight": "Hugging Face: 'hf:DIRECTORY' with its"
    " config.json",
    "visual.conv1.weight": "OpenCLIP: 'openclip:ARCH/FILE.safetensors'",
}
BLOCKS = re.compile(r"blocks\.(\d+)\.")
HEAD_WIDTHS = (64, 32, 16, 8)  # DeiT and LV-ViT have 64 channels per head; no checkpoint says


@dataclass(frozen=True)
class Weights:
    """The tensors of one network, found in a checkpoint."""

    state: dict[str, Tensor]  # by the names that the network itself uses
    prefix: str  # what stood before each name in the file
    others: tuple[str, ...]  # prefixes of further copies that were passed over


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a checkpoint by their full names, and the settings of the training."""

    path: Path
    tensors: dict[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def find(self, anchor: str) -> Weights:
        """Find the network that has a tensor of this name, whatever stands before it.

        Of several copies the averaged one is taken (EMA, teacher), then the plain one.

        Args:
            anchor: A tensor every network of the kind has, such as "patch_embed.proj.weight".
        """
        prefixes = sorted({start for key in self.tensors if (start := _before(key, anchor)) != "?"})
        if not prefixes:
            raise ModelError(self._nothing_found(anchor))
        chosen, *others = sorted(prefixes, key=lambda prefix: (_rank(prefix), len(prefix)))
        nested = [one for one in others if one.startswith(chosen)] if chosen else others
        state = {
            key.removeprefix(chosen): tensor
            for key, tensor in self.tensors.items()
            if key.startswith(chosen) and not any(key.startswith(one) for one in nested)
        }
        return Weights(state, chosen, tuple(others))

    def _nothing_found(self, anchor: str) -> str:
        for key, advice in HINTS.items():
            if any(_before(one, key) != "?" for one in self.tensors):
                return f"'{self.path}' has the layout of {advice}."
        shown = ", ".join(list(self.tensors)[:3])
        return (
            f"'{self.path}' holds {len(self.tensors)} tensors ({shown}, …), but none ends in"
            f" '{anchor}', which every network of this kind has. Is it a checkpoint of another"
            " architecture? 'clearvit models PATTERN' lists them."
        )


def split_name(name: str) -> tuple[str, Path | None]:
    """Split `ARCH@FILE` into the architecture and the path of its checkpoint file, if any.

    The hub's own names (`hf-hub:ID@REVISION`) and directories keep their `@`.
    """
    if name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        return name, None
    architecture, at, file = name.partition("@")
    if at and not file:
        raise ModelError(f"'{name}' ends with '@'; the path of a checkpoint file must follow.")
    return architecture, Path(file).expanduser() if at else None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file: safetensors, or what `torch.save` wrote of tensors alone.

    Raises:
        ModelError: It is not there, is damaged, holds objects that would have to run code, or
            tensors larger than the file.
    """
    if not path.is_file():
        raise ModelError(f"there is no checkpoint file '{path}'.")
    if not path.name.endswith(SUFFIXES):
        raise ModelError(f"'{path}' is no checkpoint file; known are {', '.join(SUFFIXES)}.")
    if path.suffix == ".safetensors":
        return Checkpoint(path, read_tensors(path, ModelError))
    content = _load_pickle(path)
    tensors: dict[str, Tensor] = {}
    for key, tensor in _walk(content, str(path)):
        tensors.setdefault(key, tensor)
    if not tensors:
        raise ModelError(f"'{path}' holds no tensors.")
    _check_sizes(tensors, path)
    return Checkpoint(path, tensors, _settings(content))


def count_modules(state: Iterable[str], pattern: re.Pattern[str] = BLOCKS) -> int:
    """Count modules by the highest number in their keys, the first group of the pattern."""
    found = [pattern.match(key) for key in state]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def fitting_heads(width: int, heads: int | None = None) -> int:
    """Check a number of attention heads, or guess it from the channels of a token."""
    if heads is not None and (heads < 1 or width % heads):
        raise ModelError(f"heads is {heads}; it must divide the {width} channels.")
    return heads or next((width // size for size in HEAD_WIDTHS if width % size == 0), 1)


def _load_pickle(path: Path) -> Any:
    try:
        check_regular(path)
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _check_archive(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # options of a training
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"'{path}' holds more than weights, or is damaged. Reading it could run code, so"
            " clearvit does not. Where you trust it, save its weights alone: torch.save("
            "{'model': model.state_dict()}, FILE); of lightly-train, use its export command."
        ) from error
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"cannot read '{path}': {reason}") from error
    except (EOFError, LookupError, AttributeError, OverflowError, zipfile.BadZipFile) as error:
        raise ModelError(f"'{path}' is damaged: it is no file of torch.save.") from error


def _check_archive(path: Path) -> None:
    """Refuse compressed members: torch writes none, and they may swell to any size."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > MOST or any(m.compress_type != zipfile.ZIP_STORED for m in members):
        raise ValueError("it is a compressed archive, which torch.save never writes.")


def _walk(content: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Give the tensors of nested mappings by dotted names, with a limit on depth and number."""
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    seen = 0
    while waiting:
        prefix, value, depth = waiting.pop(0)
        if not isinstance(value, Mapping):
            continue
        for key, one in value.items():
            seen += 1
            if seen > MOST or depth > DEEPEST:
                raise ModelError(f"'{path}' is nested too deeply or has too many entries.")
            name = f"{prefix}{key}"
            if isinstance(one, Tensor):
                yield name, one
            elif isinstance(one, Mapping) and not NOT_WEIGHTS.search(str(key).lower()):
                waiting.append((f"{name}.", one, depth + 1))


def _check_sizes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that claim more elements than their bytes, as a hostile file may."""
    storages: dict[int, int] = {}
    for key, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized:
            raise ModelError(f"'{key}' of '{path}' is no plain tensor; save dense weights.")
        storage = tensor.untyped_storage()
        if tensor.numel() * tensor.element_size() > storage.nbytes():
            raise ModelError(f"'{key}' of '{path}' is larger than its data; the file is damaged.")
        storages[storage.data_ptr()] = storage.nbytes()
    if sum(storages.values()) > path.stat().st_size:
        raise ModelError(f"'{path}' claims more data than it holds; the file is damaged.")


def _settings(content: Any) -> dict[str, Any]:
    """Read the options a trainer kept beside the weights; whoever uses one has to check it."""
    kept = content.get("args") if isinstance(content, Mapping) else None
    options = vars(kept) if isinstance(kept, argparse.Namespace) else kept
    return {str(key): value for key, value in options.items()} if isinstance(options, dict) else {}


def _before(key: str, anchor: str) -> str:
    """Give what stands before the anchor in a key, "?" if it does not end in it."""
    if key == anchor:
        return ""
    return key[: -len(anchor)] if key.endswith(f".{anchor}") else "?"


def _rank(prefix: str) -> int:
    words = set(re.split(r"[._]", prefix))
    return 0 if words & AVERAGED else 2 if words & TRAINED else 1
