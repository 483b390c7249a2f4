"""One training loop for every room, from the first step or from where it was killed.

One process by default, several with `accelerate launch`: each works on its share of every step, so
the number of processes changes the result by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.errors import TrainingError
from clearvit.training.curves import Curves
from clearvit.training.ema import Ema
from clearvit.training.order import Order
from clearvit.training.schedule import Schedule
from clearvit.training.state import State, load_state, load_weights, save_state, save_weights

Precision = Literal["auto", "no", "bf16"]
FUSED = ("cpu", "cuda")  # one pass over the weights; on a CPU a ninth of the time of a plain step
STATE, BEST = "state.safetensors", "best.safetensors"
Losses = dict[str, Tensor]
Report = Callable[[int, int, str], None]
"""Called with the steps that are done, of how many, and how it goes in a few words."""


@dataclass(frozen=True)
class FitConfig:
    """How to train, whatever is trained."""

    epochs: int
    batch: int  # images per step, over all processes
    micro: int  # images per forward pass; the gradients of a step are summed up
    warmup: int = 0  # steps
    end: float = 0.05  # share of the learning rate that is left at the end
    patience: int | None = 3  # epochs without a better held-out score before stopping
    clip: float | None = 1.0  # largest norm of the gradient
    precision: Precision = "auto"  # bf16 where the hardware has it
    ema: float = 0.0  # decay of the running mean of the weights, which is judged and kept
    save_every: int = 50  # steps
    seed: int = 0


class Task(Protocol):
    """What a room brings: a module that computes its own losses, and the data."""

    module: nn.Module  # called with a batch; returns losses, "loss" among them, means over images

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups with "params", "lr" and "weight_decay".

        A group with "begin" changes nothing before that step.
        """

    def batch(self, images: Sequence[int], step: int) -> Any:
        """Load some training images, in the variation that belongs to this step."""

    def score(self, module: nn.Module) -> dict[str, float]:
        """Judge on held-out images; "score" is better when higher."""

    def names(self, images: Sequence[int]) -> list[str]:
        """Name some training images, for messages."""


def fit(
    task: Task,
    order: Order,
    config: FitConfig,
    folder: Path,
    accelerator: Accelerator,
    report: Report | None = None,
) -> State:
    """Train until the epochs are over or held-out images say stop; leave the best weights in place.

    Killed at any moment, the same call goes on from the last saved state and ends with the same
    weights, bit for bit in one process.
    """
    check_share(order.batch, accelerator.num_processes)
    fused = accelerator.device.type in FUSED
    optimizer = torch.optim.AdamW(task.groups(), fused=fused)
    full_rates = [group["lr"] for group in optimizer.param_groups]
    schedule = Schedule(order.steps, config.epochs, config.warmup, config.end)
    ema = Ema(task.module, config.ema)
    state = load_state(folder / STATE, task.module, optimizer, ema)
    module = accelerator.prepare_model(task.module)
    curves = Curves(folder / "curves", state.step) if accelerator.is_main_process else None
    total = order.steps * config.epochs
    if state.best_score is None:
        _judge(task, module, ema, state, folder, accelerator, epoch=0)
    while state.step < total and not state.stopped:
        for group, rate in zip(optimizer.param_groups, full_rates, strict=True):
            waits = state.step < group.get("begin", 0)
            group["lr"] = 0.0 if waits else rate * schedule.factor(state.step)
        try:
            losses = _step(task, module, optimizer, order, config, state.step, accelerator)
        except TrainingError:
            if accelerator.is_main_process:
                save_state(folder / STATE, task.module, optimizer, state, ema)
            raise
        state.step += 1
        ema.add(state.step)
        if state.step % order.steps == 0:
            epoch = state.step // order.steps
            _judge(task, module, ema, state, folder, accelerator, epoch=epoch)
            state.stopped = (
                config.patience is not None and epoch - state.best_epoch >= config.patience
            )
        if curves is not None:
            curves.add(state.step, losses, optimizer, state)
            if state.step % config.save_every == 0 or state.step % order.steps == 0:
                save_state(folder / STATE, task.module, optimizer, state, ema)
            if report:
                report(state.step, total, _in_words(losses, state))
    accelerator.wait_for_everyone()
    load_weights(folder / BEST, task.module)
    return state


def _step(
    task: Task,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: Order,
    config: FitConfig,
    step: int,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Take one step; refuse it, and change nothing, if a loss or the gradient is not a number."""
    own = order.share(step, accelerator.process_index, accelerator.num_processes)
    pieces = [own[i : i + config.micro] for i in range(0, len(own), config.micro)]
    sums: dict[str, Tensor] = {}
    device, wanted = accelerator.device, in_half(accelerator.device, config.precision)
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        batch = task.batch(piece, step)  # not under autocast, which would convert the targets
        with _unsynchronised(accelerator, module, not last), half_precision(device, wanted):
            losses: Losses = module(batch)
        part = len(piece) / len(own)
        with _unsynchronised(accelerator, module, not last):
            accelerator.backward(losses["loss"] * part)
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value.detach().float() * part
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(trained, config.clip or math.inf)
    numbers = torch.stack([*sums.values(), norm.to(sums["loss"])])
    numbers = accelerator.reduce(numbers, reduction="mean")
    named = dict(zip([*sums, "gradient"], numbers.tolist(), strict=True))
    bad = [name for name, value in named.items() if not math.isfinite(value)]
    if bad:
        optimizer.zero_grad()
        raise _not_finite(bad, named, task, order, step)
    optimizer.step()
    optimizer.zero_grad()
    return named


def _unsynchronised(accelerator: Accelerator, module: nn.Module, wanted: bool) -> Any:
    """Keep the gradients of a part of a step to this process; they are exchanged once."""
    return accelerator.no_sync(module) if wanted else nullcontext()


def _not_finite(
    bad: list[str], named: dict[str, float], task: Task, order: Order, step: int
) -> TrainingError:
    images = ", ".join(task.names(order.images(step))[:8])
    what = ", ".join(f"{name} is {named[name]}" for name in bad)
    return TrainingError(
        f"step {step + 1} (epoch {step // order.steps + 1}) was not taken: {what}. The state before"
        f" it is kept. Try a lower learning rate, or leave these images out: {images}."
    )


def _judge(
    task: Task,
    module: nn.Module,
    ema: Ema,
    state: State,
    folder: Path,
    accelerator: Accelerator,
    *,
    epoch: int,
) -> None:
    """Score the mean of the weights after an epoch; keep it if it is the best so far."""
    with ema.in_place():
        scores = task.score(accelerator.unwrap_model(module))
        state.history.append({"epoch": epoch, **scores})
        if state.best_score is None or scores["score"] > state.best_score:
            state.best_score, state.best_epoch = scores["score"], epoch
            if accelerator.is_main_process:
                save_weights(folder / BEST, accelerator.unwrap_model(module))


def _in_words(losses: Mapping[str, float], state: State) -> str:
    held = "" if state.best_score is None else f", held-out {state.history[-1]['score']:.4f}"
    return f"loss {losses['loss']:.4f}{held}"


def check_share(batch: int, processes: int) -> None:
    """Refuse a batch that processes cannot share equally."""
    if batch % processes:
        raise TrainingError(
            f"a batch of {batch} images cannot be shared by {processes} processes; use a multiple"
            f" of {processes}."
        )


def accelerator_for(device: torch.device) -> Accelerator:
    """Set up accelerate for the device a model is on.

    Half precision is up to the loop: accelerate settles it once for a whole process.
    """
    return Accelerator(cpu=device.type == "cpu", mixed_precision="no")


def in_half(device: torch.device, precision: Precision) -> bool:
    """Decide whether to compute in bfloat16; "auto" does where a GPU has it."""
    able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16" or (precision == "auto" and able)


def half_precision(device: torch.device, wanted: bool) -> torch.autocast:
    """Compute in bfloat16 where it is safe, if wanted."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
