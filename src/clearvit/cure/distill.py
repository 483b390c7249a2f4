"""Cure by self-distillation: a frozen teacher averaged over views, a student with registers.

"Vision Transformers with Self-Distilled Registers" (PH-Reg), arXiv 2505.21501.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.backbones.dense_clip import DenseClip
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.config import RATES, CureConfig
from clearvit.cure.denoise import white_of
from clearvit.cure.registers import initial_registers, with_registers
from clearvit.cure.student import Lesson, Look, Student, varied
from clearvit.cure.targets import Targets
from clearvit.cure.unlock import groups, unlock
from clearvit.cure.views import Views, reach
from clearvit.training.loop import FitConfig, fit
from clearvit.training.order import Order, generator
from clearvit.training.pictures import split
from clearvit.training.state import State

DECAY = 1e-2
WARMUP = 0.05  # share of all steps, at most WARMUP_STEPS
WARMUP_STEPS = 50
END = 0.05  # share of the learning rate that is left at the end
SAMPLE = 32  # pictures that decide where registers start

Report = Callable[[str, int, int, str], None]
"""Called with what is done now, how much of it, of how much, and how it goes."""


@dataclass(frozen=True)
class Distilled:
    """A student after training, and how it got there."""

    backbone: VitBackbone
    state: State
    before: dict[str, float]  # what the teacher scores in one pass on the held-out pictures

    @property
    def after(self) -> dict[str, float]:
        """What the student scores on them."""
        return next(r for r in self.state.history if r["epoch"] == self.state.best_epoch)


class Distillation:
    """The task of the training loop: pictures, targets, and a score on held-out ones."""

    def __init__(
        self,
        student: VitBackbone,
        targets: Targets,
        training: Sequence[int],
        held: Sequence[int],
        config: CureConfig,
        device: torch.device,
    ) -> None:
        self.module: nn.Module = Student(
            student,
            mse=config.mse,
            class_weight=config.class_weight,
            weigh=config.confidence,
        ).to(device)
        self.targets, self.training, self.held = targets, training, held
        self.config, self.device = config, device
        (height, width), patch = targets.config.size, student.patch
        white = white_of(student.preprocessing)
        self.look = Look((height // patch[0], width // patch[1]), patch, white)

    def groups(self) -> list[dict[str, Any]]:
        """Sort the unlocked parameters by rate and decay."""
        shares = RATES[self.config.rates]
        rates = {part: self.config.lr * share for part, share in shares.items()}
        return groups(
            self._student().network,
            rates,
            decay=DECAY,
            decay_all=self.config.rates == "official",
        )

    def batch(self, images: Sequence[int], step: int) -> Lesson:
        """Load training pictures, in views that depend on the step and the picture."""
        lesson = self._lesson([self.training[i] for i in images])
        if self.config.vary == "none":
            return lesson
        drawn = torch.rand(len(self.training), 4, generator=generator(self.config.seed + 1, step))
        return varied(lesson, self._views(drawn[list(images)]), self.look)

    def _views(self, drawn: Tensor) -> Views:
        """Turn random numbers (B, 4) into views: half of them shifted, half of them mirrored."""
        furthest = torch.tensor(reach(self.look.grid, self.config.fraction))
        offsets = ((2 * furthest + 1) * drawn[:, 1:3]).long() - furthest
        offsets[(drawn[:, 0] < 0.5) | (self.config.vary == "mirror")] = 0
        return Views(offsets, drawn[:, 3] < 0.5)

    def score(self, module: nn.Module) -> dict[str, float]:
        """Judge by held-out pictures: mean cosine to clean patches, and to the old class token."""
        assert isinstance(module, Student)
        parts = [module.agreement(self._lesson([number])) for number in self.held]
        patches, kept = (torch.cat(values).mean().item() for values in zip(*parts, strict=True))
        return {"score": patches, "class": kept}

    def names(self, images: Sequence[int]) -> list[str]:
        """Name some training pictures."""
        return [self.targets.pictures[self.training[i]].name for i in images]

    def _student(self) -> Student:
        assert isinstance(self.module, Student)
        return self.module

    def _lesson(self, numbers: Sequence[int]) -> Lesson:
        found = [self.targets[number] for number in numbers]
        pixels = torch.stack([self.targets.pixels(number) for number in numbers])

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(target, name) for target in found]).to(self.device).float()

        variance = stacked("variance")
        shown = torch.ones_like(variance, dtype=torch.bool)
        return Lesson(pixels.to(self.device), stacked("patches"), stacked("cls"), variance, shown)


def distill(
    backbone: VitBackbone,
    targets: Targets,
    config: CureConfig,
    folder: Path,
    accelerator: Accelerator,
    report: Report | None = None,
) -> Distilled:
    """Train a student on the targets, or finish what an earlier run began in `folder`.

    Args:
        backbone: The model to cure, read as a student; left as it was.
        targets: Clean tokens of all pictures, from the same model read as a teacher.
        config: Registers, unlocked parts, rates, epochs.
        folder: For the state of the run.
        accelerator: One process or several.
        report: Told about the progress.
    """
    training, held = split(len(targets.pictures), config.validation)
    sample = torch.stack([targets.pixels(number) for number in training[:SAMPLE]])
    start = initial_registers(
        backbone,
        config.registers or 0,
        sample.to(backbone.device),
        init=config.init,
        seed=config.seed,
    )
    student = with_registers(backbone, start)
    plain = student.plain if isinstance(student, DenseClip) else student
    plain.recompute = config.recompute
    unlock(student, parts_to_unlock(config), unused=_unused(student, config))
    task = Distillation(student, targets, training, held, config, accelerator.device)
    order = Order(len(training), config.batch, config.seed)
    total = order.steps * config.epochs
    gentle = config.rates == "gentle"
    fitting = FitConfig(
        epochs=config.epochs,
        batch=config.batch,
        micro=config.micro or config.batch,
        warmup=min(WARMUP_STEPS, round(WARMUP * total)) if gentle else 0,
        end=END,
        patience=config.patience,
        clip=1.0 if gentle else None,
        precision=config.precision,
        ema=config.ema,
        seed=config.seed,
    )
    tell = None if report is None else functools.partial(report, "train")
    before = task.score(Student(targets.teacher, mse=1.0, class_weight=1.0, weigh=False))
    state = fit(task, order, fitting, folder, accelerator, tell)
    student.network.requires_grad_(True)
    plain.recompute = False
    return Distilled(student, state, before)


def _unused(student: VitBackbone, config: CureConfig) -> set[str]:
    """Name what gets no gradient: behind a dense head, parts that only the class token needs."""
    if isinstance(student, DenseClip) and not config.class_weight:
        return student.unused_parameters()
    return set()


def parts_to_unlock(config: CureConfig) -> list[str]:
    """List the parts that exist: without registers there is nothing of them to unlock."""
    return [part for part in config.unlock if part != "registers" or config.registers]
