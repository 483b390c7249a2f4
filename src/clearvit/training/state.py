"""What a run needs to go on: one safetensors file, renamed when it is whole.

Data order and augmentation are functions of the step, so the trainable weights, the
optimizer's moments, and a few numbers are all there is. No pickle is written or read.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from clearvit.errors import StoreError
from clearvit.files import written_whole
from clearvit.training.ema import Ema, trained_tensors

WEIGHTS, AVERAGES, MOMENTS = "weights/", "ema/", "optimizer/"


@dataclass
class State:
    """Where a run stands."""

    step: int = 0  # steps that are done
    best_epoch: int = 0  # epoch whose weights scored best, 0 for those before training
    best_score: float | None = None
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)  # one per epoch
    stopped: bool = False  # the held-out score stopped rising


def save_state(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: State, ema: Ema
) -> None:
    """Write weights, their moving average, optimizer and numbers."""
    names = trained_tensors(module)
    tensors = {WEIGHTS + name: p for name, p in names.items()}
    tensors |= {AVERAGES + name: average for name, average in ema.weights.items()}
    for name, parameter in names.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{MOMENTS}{key}/{name}"] = torch.as_tensor(value)
    _write(path, tensors, {"state": json.dumps(dataclasses.asdict(state))})


def load_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema) -> State:
    """Restore what `save_state` wrote; without a file, the run is at its beginning."""
    if not path.exists():
        return State()
    names = trained_tensors(module)
    tensors, metadata = _read(path)
    _copy_weights(path, names, tensors)
    for name, average in ema.weights.items():
        average.copy_(tensors[AVERAGES + name])
    for key, tensor in tensors.items():
        if key.startswith(MOMENTS):
            kind, _, name = key.removeprefix(MOMENTS).partition("/")
            on_cpu = kind == "step" and not optimizer.defaults["fused"]  # as AdamW holds it
            optimizer.state[names[name]][kind] = tensor.to("cpu" if on_cpu else names[name].device)
    return State(**json.loads(metadata["state"]))


def save_weights(path: Path, module: nn.Module) -> None:
    """Write the trainable weights, and nothing else."""
    _write(path, {WEIGHTS + name: p for name, p in trained_tensors(module).items()}, {})


def load_weights(path: Path, module: nn.Module) -> None:
    """Restore what `save_weights` wrote."""
    _copy_weights(path, trained_tensors(module), _read(path)[0])


def _copy_weights(path: Path, names: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    stored = {key.removeprefix(WEIGHTS) for key in tensors if key.startswith(WEIGHTS)}
    if stored != set(names):
        raise StoreError(f"'{path}' belongs to a run that trained other weights; use --overwrite.")
    with torch.no_grad():
        for name, parameter in names.items():
            parameter.copy_(tensors[WEIGHTS + name])


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
    advice = "The last good state is kept; make room and run the same command to go on."
    with written_whole(path, advice) as temporary:
        save_file(plain, temporary, metadata=metadata)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"cannot read '{path}': {error}. Delete it to begin the training again."
        ) from error
