"""State dicts in files of other people: only tensors are read, and sizes are read off shapes."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clearvit.errors import ModelError

HEAD_WIDTHS = (64, 32, 16, 8)  # DeiT and LV-ViT have 64 channels per head; no checkpoint says


def read_state_dict(path: Path) -> dict[str, Tensor]:
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


def fitting_heads(width: int, heads: int | None = None) -> int:
    """Check a number of attention heads, or guess it from the channels of a token."""
    if heads is not None and (heads < 1 or width % heads):
        raise ModelError(f"heads is {heads}; it must divide the {width} channels.")
    return heads or next((width // size for size in HEAD_WIDTHS if width % size == 0), 1)


def count_modules(keys: Mapping[str, Tensor], pattern: re.Pattern[str]) -> int:
    """Count modules by the highest number in their keys, the first group of the pattern."""
    found = [pattern.match(key) for key in keys]
    return 1 + max((int(match[1]) for match in found if match), default=-1)
