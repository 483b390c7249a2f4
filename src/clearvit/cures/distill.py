"""Cure by self-distillation (PH-Reg), from images to the result, top to bottom.

A frozen teacher, averaged over shifted and mirrored views, gives every image clean tokens; a
student, the same weights with registers, learns to give them in one forward pass. No labels.
"Vision Transformers with Self-Distilled Registers", arXiv 2505.21501.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.classifier import HeadWitness
from clearvit.cures.config import CureConfig
from clearvit.cures.registers import (
    fold_class_position,
    initial_registers,
    split_class_position,
    with_registers,
)
from clearvit.cures.results.cure_report import CureReport, report_training
from clearvit.cures.results.weight_change import WeightChange, extract_change
from clearvit.cures.targets import TargetCache
from clearvit.cures.teacher import Teacher, read_tokens, teacher_and_student
from clearvit.cures.trainable import LOW_RANK, learning_rate, param_groups, unfreeze
from clearvit.images import ImageSource
from clearvit.options import Size
from clearvit.progress import Progress
from clearvit.training.held_out import check_batch_fits, split_held_out
from clearvit.training.loop import FitConfig, fit
from clearvit.training.order import BatchOrder, seeded_generator
from clearvit.views.sampling import Views, reach
from clearvit.views.shifting import apply_view, shift_targets, white_of

RUN = "run"  # directory of the state
SAMPLE = 32  # images that decide where registers start
EPSILON = 1e-8  # added to the norms, as published
# --- 1. the student: its losses ------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Images and what their tokens should be."""

    pixels: Tensor  # (B, 3, height, width)
    patches: Tensor  # (B, N, D) clean
    cls: Tensor  # (B, C) of the teacher; (B, 0) for a model without
    shown: Tensor  # (B, N) bool: patches of the image; the others are padding


class Student(nn.Module):
    """A backbone that computes its own distance to clean tokens."""

    def __init__(self, backbone: VitBackbone, config: CureConfig) -> None:
        super().__init__()
        self.network: nn.Module = backbone.network
        self.backbone, self.mse, self.class_weight = (
            backbone,
            config.mse_weight,
            config.class_weight,
        )

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the images of all batches."""
        total = sum(len(batch.pixels) for batch in batches)
        means: dict[str, Tensor] = {}
        for batch in batches:
            for name, value in self._losses(batch).items():
                part = value * (len(batch.pixels) / total)
                means[name] = means[name] + part if name in means else part
        return means

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        patches, cls = read_tokens(self.backbone, batch.pixels, with_class=self.class_weight > 0)
        loss = distances(patches, batch.patches, self.mse)[batch.shown].mean()
        losses = {"loss": loss, "patches": loss}
        if cls.shape[1]:
            whole = batch.shown.all(1).float()  # a shifted image shows less: another class token
            losses["class"] = (distances(cls, batch.cls, self.mse) * whole).mean()
            losses["loss"] = loss + self.class_weight * losses["class"]
        return losses

    @torch.no_grad()
    def similarity(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean cosine of patches to their targets and of the class token to the old one, (B,)."""
        patches, cls = read_tokens(self.backbone, batch.pixels, with_class=True)
        near = cosine(patches, batch.patches).mean(1)
        return near, cosine(cls, batch.cls) if cls.shape[1] else torch.ones_like(near)


def cosine(student: Tensor, target: Tensor) -> Tensor:
    """Cosine of each token with its target, (..., C) -> (...), in float32."""
    student, target = student.float(), target.float()
    norms = (student.norm(dim=-1) + EPSILON) * (target.norm(dim=-1) + EPSILON)
    product: Tensor = (student * target).sum(-1) / norms
    return product


def distances(student: Tensor, target: Tensor, mse: float) -> Tensor:
    """Compute 1 - cosine + mse * mean squared difference of each token, (..., C) -> (...)."""
    squared = (student.float() - target.float()).square().mean(-1)
    return 1 - cosine(student, target) + mse * squared


# --- 2. the task: batches and the held-out score ------------------------------------------------


class Distillation:
    """What the training loop asks for; all randomness is a function of step and image."""

    def __init__(
        self,
        student: VitBackbone,
        teacher: Teacher,
        cache: TargetCache,
        numbers: Sequence[int],
        device: torch.device,
    ) -> None:
        self.teacher, self.cache, self.config, self.device = teacher, cache, teacher.config, device
        self.student = Student(student, self.config).to(device)
        self.module: nn.Module = self.student
        self.white = white_of(student.preprocessing)
        split = split_held_out(len(numbers), self.config.held_out)
        self.training, self.held_out = ([numbers[i] for i in part] for part in split)
        self.witness = HeadWitness(teacher.backbone) if self.config.layer is None else None

    def param_groups(self) -> list[dict[str, Any]]:
        """Group the trainable parameters."""
        return param_groups(self.student.network, self.config)

    def load_batch(self, images: Sequence[int], step: int) -> list[Batch]:
        """Load training images with their targets, augmented; one batch for each size."""
        by_size: dict[Size, list[int]] = {}
        for image in images:
            by_size.setdefault(self.teacher.size_of(self.training[image]), []).append(image)
        return [self._load(same, size, step) for size, same in by_size.items()]

    def _load(self, images: Sequence[int], size: Size, step: int) -> Batch:
        numbers, config = [self.training[i] for i in images], self.config
        grid = self.teacher.grid_of(size)
        if config.fresh_targets:
            return self._fresh_batch(numbers, size, step)
        batch = self._batch(numbers)
        if config.augment == "none":
            return batch
        rng = seeded_generator(config.seed + 1, step)
        random = torch.rand(len(self.training), 4, generator=rng)[list(images)]
        furthest = torch.tensor(reach(grid, config.fraction))
        offsets = ((2 * furthest + 1) * random[:, 1:3]).long() - furthest
        offsets[random[:, 0] < 0.5] = 0
        return shift_batch(batch, Views(offsets, random[:, 3] < 0.5), grid, self.white)

    def _batch(self, numbers: Sequence[int]) -> Batch:
        targets = [self.cache[number] for number in numbers]
        pixels = torch.stack([self.teacher.preprocessing.normalize(t.image) for t in targets])
        patches, cls = (torch.stack([getattr(t, n) for t in targets]) for n in ("patches", "cls"))
        return self._to_device(pixels, patches, cls)

    def _fresh_batch(self, numbers: Sequence[int], size: Size, step: int) -> Batch:
        found = []
        for number in numbers:
            rng = seeded_generator(self.config.seed + 1, step * len(self.cache.sources) + number)
            found.append(self.teacher.fresh_target(self.cache.read(number), size, rng))
        pixels, patches = (torch.stack(part) for part in zip(*found, strict=True))
        return self._to_device(pixels, patches, torch.zeros(len(numbers), 0))

    def _to_device(self, pixels: Tensor, patches: Tensor, cls: Tensor) -> Batch:
        pixels, patches, cls = (t.to(self.device).float() for t in (pixels, patches, cls))
        shown = torch.ones(patches.shape[:2], dtype=torch.bool, device=self.device)
        return Batch(pixels, patches, cls, shown)

    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Measure on held-out images: mean cosine to clean patches, and to the old class token."""
        if not self.held_out:
            return {}
        assert isinstance(module, Student)
        parts = [module.similarity(self._batch([number])) for number in self.held_out]
        patches, cls = (torch.cat(values).mean().item() for values in zip(*parts, strict=True))
        found = {"score": patches, "class": cls}
        if self.witness is not None:
            least = self.config.head_agreement
            found |= self.witness.compare(module.backbone, self._held_out_pixels, least)
        return found

    def _held_out_pixels(self) -> Iterator[Tensor]:
        return (self._batch([number]).pixels for number in self.held_out)

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images."""
        return [self.cache.sources[self.training[i]].name for i in images]


def shift_batch(batch: Batch, views: Views, grid: tuple[int, int], white: Tensor) -> Batch:
    """Show every image of a batch in a view of its own (offsets in patches); move its targets."""
    patch = [side // cells for side, cells in zip(batch.pixels.shape[2:], grid, strict=True)]
    pixels, patches, shown = [], [], []
    for image, target, (dy, dx), flip in zip(
        batch.pixels, batch.patches, views.offsets.tolist(), views.flips.tolist(), strict=True
    ):
        pixels.append(apply_view(image[None], (dy * patch[0], dx * patch[1]), flip, white))
        moved, seen = shift_targets(target.unflatten(0, grid), (dy, dx), flip)
        patches.append(moved.flatten(0, 1))
        shown.append(seen.flatten())
    return Batch(torch.cat(pixels), torch.stack(patches), batch.cls, torch.stack(shown))


# --- 3. from images to the result ---------------------------------------------------------------


def distill(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    folder: Path,
    config: CureConfig,
    accelerator: Accelerator,
    progress: Progress | None = None,
) -> tuple[VitBackbone, CureReport, WeightChange | None]:
    """Train a student, or finish what an earlier run began in `folder`.

    Returns it with a report and, of a low-rank training, what it changed: the student is then
    exactly the model with this change.

    Args:
        backbone: The model to cure; left as it was.
        sources: Images, readable or not.
        folder: For the targets and the state of the run.
        config: All options; sizes and number of registers are decided.
        accelerator: One process or several.
        progress: Called with stage, done, total and a note.
    """
    original, raw = teacher_and_student(backbone, config)
    teacher = Teacher(original, config)
    cache = teacher.cache(sources, folder)
    cache.prepare(progress, process=accelerator.process_index, processes=accelerator.num_processes)
    accelerator.wait_for_everyone()
    numbers, skipped = cache.split_readable()
    check_batch_fits(len(numbers), config.held_out, config.batch)

    training = [numbers[i] for i in split_held_out(len(numbers), config.held_out)[0]]
    alike = [n for n in training if teacher.size_of(n) == teacher.size_of(training[0])]
    sample = [teacher.pixels(cache, number) for number in alike[:SAMPLE]]
    student = make_student(raw, config, initial_registers(raw, config, torch.stack(sample)))
    task = Distillation(student, teacher, cache, numbers, accelerator.device)
    order = BatchOrder(len(task.training), config.batch, config.seed)
    steps = order.steps_per_epoch * config.epochs
    warmup = min(50, round(0.05 * steps)) if config.warmup_steps is None else config.warmup_steps
    fitting = FitConfig(
        epochs=config.epochs,
        micro_batch=config.micro_batch or config.batch,
        warmup_steps=warmup,
        schedule=config.schedule,
        end_factor=config.lr_end / learning_rate(config) if config.lr_end else 0.05,
        patience=config.patience,
        clip_norm=config.clip_norm,
        precision=config.precision,
        ema_decay=config.ema_decay,
    )
    unchanged = with_registers(raw, torch.empty(0))  # like with like: the student's own features
    before = task.evaluate(Student(unchanged, config).to(accelerator.device))
    state = fit(task, order, fitting, folder / RUN, accelerator, progress)

    report = report_training(config, before, state, len(numbers), skipped)
    if LOW_RANK not in config.unfreeze:
        return merge_student(student), report, None
    change = extract_change(student, raw)
    return change.apply(raw), report, change


def make_student(raw: VitBackbone, config: CureConfig, registers: Tensor) -> VitBackbone:
    """Copy a model, add registers (m, C) and let the chosen weights train."""
    student = with_registers(raw, registers)
    if "positions" in config.unfreeze and not {"class", "all"} & set(config.unfreeze):
        split_class_position(student.network, raw.network)
    unfreeze(student, config)
    plain = student.plain if isinstance(student, DenseClip) else student
    plain.grad_checkpointing = config.grad_checkpointing
    return student


def merge_student(student: VitBackbone) -> VitBackbone:
    """Make a plain network of a student again."""
    fold_class_position(student.network)
    student.network.requires_grad_(True)
    plain = student.plain if isinstance(student, DenseClip) else student
    plain.grad_checkpointing = False
    return student
