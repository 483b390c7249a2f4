"""One training loop for every package, from the first step or from where a run was killed.

One process by default, several with `accelerate launch`: each works on its part of every batch, so
the number of processes changes the result by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.errors import ImageError, TrainingError
from clearvit.options import Precision
from clearvit.precision import autocast, uses_bf16
from clearvit.progress import Progress
from clearvit.training.ema import Ema
from clearvit.training.order import BatchOrder
from clearvit.training.state import State, load_state, load_weights, save_state, save_weights
from clearvit.training.tensorboard import Curves

Schedule = Literal["exponential", "ph-reg", "cosine"]
FUSED = ("cpu", "cuda")  # one pass over the weights; on a CPU a ninth of the time of a plain step
STATE, BEST = "state.safetensors", "best.safetensors"


@dataclass(frozen=True)
class FitConfig:
    """How to train, whatever is trained."""

    epochs: int  # that the schedule is made for
    micro_batch: int  # images per forward pass; the gradients of a step are accumulated
    warmup_steps: int = 0
    schedule: Schedule = "exponential"  # see `lr_factor`
    end_factor: float = 0.05  # learning rate at the end, relative to the full one
    patience: int | None = 3  # epochs without a better held-out score before stopping
    clip_norm: float | None = 1.0  # largest norm of the gradient
    precision: Precision = "auto"  # bf16 where the hardware has it
    ema_decay: float = 0.0  # of the averaged weights, which are evaluated and kept; 0: none
    ema_warmup: bool = True  # whether the decay is smaller in the first steps
    save_every: int = 50  # steps
    last_epoch: int | None = None  # ends here, in the middle of the schedule; None: at its end
    stage: str = "train"  # name of this training in progress reports


class Task(Protocol):
    """What a package brings: a module that computes its own losses, and the data."""

    module: nn.Module  # called with a batch; returns losses, "loss" among them, means over images

    def param_groups(self) -> list[dict[str, Any]]:
        """List parameter groups with "params", "lr" and "weight_decay".

        A group with "begin" is frozen before that step.
        """

    def load_batch(self, images: Sequence[int], step: int) -> Any:
        """Load some training images, augmented as belongs to this step."""

    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Measure on held-out images; a higher "score" is better.

        Without a "score" the weights of the last epoch are the result. Weights that are "refused"
        (not 0) are not, unless it is those before the first step.
        """

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images, for messages."""


def fit(
    task: Task,
    order: BatchOrder,
    config: FitConfig,
    folder: Path,
    accelerator: Accelerator,
    progress: Progress | None = None,
) -> State:
    """Train until the epochs are over or the held-out score stalls; end with the best weights.

    Killed at any moment, the same call goes on from the last saved state and ends with the same
    weights, bit for bit in one process.
    """
    check_divisible(order.batch, accelerator.num_processes)
    trainer = _Trainer(task, order, config, folder, accelerator)
    ends = config.epochs if config.last_epoch is None else config.last_epoch
    total = order.steps_per_epoch * ends
    state = trainer.state
    main = accelerator.is_main_process
    curves = Curves(folder / "curves", state.step) if main else None
    if not state.history:
        trainer.evaluate(epoch=0)
    while state.step < total and not state.stopped:
        losses = trainer.step()
        state.step += 1
        trainer.ema.update(state.step)
        epoch, inside = divmod(state.step, order.steps_per_epoch)
        if inside == 0:
            trainer.evaluate(epoch)
            stalled = epoch - state.best_epoch
            state.stopped = config.patience is not None and stalled >= config.patience
        if curves is not None:
            curves.add(losses, trainer.optimizer, state)
            if state.step % config.save_every == 0 or inside == 0:
                trainer.save()
            if progress:
                progress(config.stage, state.step, total, _describe(losses, state))
    accelerator.wait_for_everyone()
    load_weights(folder / BEST, task.module)
    return state


class _Trainer:
    """Module, optimizer, averaged weights and state of one run."""

    def __init__(
        self,
        task: Task,
        order: BatchOrder,
        config: FitConfig,
        folder: Path,
        accelerator: Accelerator,
    ) -> None:
        self.task, self.order, self.config = task, order, config
        self.folder, self.accelerator = folder, accelerator
        fused = accelerator.device.type in FUSED
        self.optimizer = torch.optim.AdamW(task.param_groups(), fused=fused)
        self.full_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.ema = Ema(task.module, config.ema_decay, warmup=config.ema_warmup)
        self.state = load_state(folder / STATE, task.module, self.optimizer, self.ema)
        self.module = accelerator.prepare_model(task.module)

    def step(self) -> dict[str, float]:
        """Take one step; refuse it, and change nothing, if a loss or the gradient is not finite."""
        step = self.state.step
        self._set_rates(step)
        losses = self._accumulate_gradients(step)
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(params, self.config.clip_norm or math.inf)
        values = torch.stack([*losses.values(), norm.to(losses["loss"])])
        values = self.accelerator.reduce(values, reduction="mean")
        named = dict(zip([*losses, "gradient"], values.tolist(), strict=True))
        if not all(map(math.isfinite, named.values())):
            self.optimizer.zero_grad()
            if self.accelerator.is_main_process:
                self.save()
            raise self._not_finite(named, step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return named

    def _set_rates(self, step: int) -> None:
        factor = lr_factor(step, self.order.steps_per_epoch, self.config)
        for group, rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            group["lr"] = 0.0 if step < group.get("begin", 0) else rate * factor

    def _accumulate_gradients(self, step: int) -> dict[str, Tensor]:
        """Run this process's images in micro-batches; returns their mean losses."""
        accelerator, size = self.accelerator, self.config.micro_batch
        device = accelerator.device
        half = uses_bf16(device, self.config.precision)
        own = self.order.local_images(step, accelerator.process_index, accelerator.num_processes)
        sums: dict[str, Tensor] = {}
        for start in range(0, len(own), size):
            piece = own[start : start + size]
            last = start + size >= len(own)  # gradients are exchanged once, with the last piece
            batch = self._load(piece, step)  # outside autocast: targets stay as they are
            with nullcontext() if last else accelerator.no_sync(self.module):
                with autocast(device, half):
                    losses = self.module(batch)
                weight = len(piece) / len(own)
                accelerator.backward(losses["loss"] * weight)
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value.detach().float() * weight
        return sums

    def _load(self, images: Sequence[int], step: int) -> Any:
        """Load images that were readable when the training began; say which if one is not now."""
        try:
            return self.task.load_batch(images, step)
        except ImageError as error:
            names = ", ".join(self.task.image_names(images)[:8])
            raise TrainingError(
                f"an image can no longer be read, one of {names}: {error}. Put it back and run the"
                " same command to go on."
            ) from error

    def evaluate(self, epoch: int) -> None:
        """Measure the averaged weights after an epoch; keep them if they are the best so far."""
        state, module = self.state, self.accelerator.unwrap_model(self.module)
        with self.ema.applied():
            found = self.task.evaluate(module)
            state.history.append({"epoch": epoch, **found})
            score, refused = found.get("score"), found.get("refused", 0) and epoch > 0
            better = score is None or state.best_score is None or score > state.best_score
            if better and not refused:
                state.best_score, state.best_epoch = score, epoch
                if self.accelerator.is_main_process:
                    save_weights(self.folder / BEST, module)

    def save(self) -> None:
        """Write all that a resumed run needs."""
        save_state(self.folder / STATE, self.task.module, self.optimizer, self.state, self.ema)

    def _not_finite(self, named: dict[str, float], step: int) -> TrainingError:
        images = ", ".join(self.task.image_names(self.order.images(step))[:8])
        what = ", ".join(f"{k} is {v}" for k, v in named.items() if not math.isfinite(v))
        return TrainingError(
            f"step {step + 1} (epoch {step // self.order.steps_per_epoch + 1}) was not taken:"
            f" {what}. The state before it is saved. Try a lower learning rate, or leave these"
            f" images out: {images}."
        )


def lr_factor(step: int, steps_per_epoch: int, config: FitConfig) -> float:
    """Give the learning rate of a step, counted from 0, relative to the full one, in [0, 1].

    "exponential" lowers it after every epoch: `end_factor ** (e / E)` after e of E epochs.
    "ph-reg" is the published code's: the rate of epoch e = 1..E is set after each of its steps, so
    all but the very first step are one epoch ahead. The first `warmup_steps` rise linearly.
    "cosine" is DeiT's and DynamicViT's: it rises from 0, and falls with every step after that.
    """
    end, epochs = config.end_factor, config.epochs
    if config.schedule == "cosine":
        if step < config.warmup_steps:
            return step / max(1, config.warmup_steps - 1)
        left = steps_per_epoch * epochs - config.warmup_steps
        done = (step - config.warmup_steps) / max(1, left)
        return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    ahead = steps_per_epoch - 1 if config.schedule == "ph-reg" else 0
    return float(warmup * end ** ((step + ahead) // steps_per_epoch / epochs))


def _describe(losses: dict[str, float], state: State) -> str:
    held_out = "" if state.best_score is None else f", held-out {state.history[-1]['score']:.4f}"
    return f"loss {losses['loss']:.4f}{held_out}"


def check_divisible(batch: int, processes: int) -> None:
    """Refuse a batch that cannot be split equally over the processes."""
    if batch % processes:
        raise TrainingError(
            f"a batch of {batch} images cannot be split over {processes} processes; use a multiple"
            f" of {processes}."
        )


def accelerator_for(device: torch.device) -> Accelerator:
    """Set up accelerate for the device a model is on.

    Mixed precision is up to the loop: accelerate fixes it once for a whole process.
    """
    return Accelerator(cpu=device.type == "cpu", mixed_precision="no")
