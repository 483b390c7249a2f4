"""What a training will take, said before it starts: time, disk, memory, and doubts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.backbones.vit import VitBackbone
from clearvit.cures.distill import Batch, Student
from clearvit.cures.teacher import Teacher
from clearvit.options import Precision, Size
from clearvit.precision import autocast, uses_bf16

FEW = 100  # images below which a training rarely helps others
FAR = 2.0  # ratio of the size of training to the model's own from which tokens differ
OPTIMIZER_BYTES = 16  # per trainable weight: gradient, two moments and the average, in float32


@dataclass(frozen=True)
class Forecast:
    """What lies ahead, in seconds and bytes; the steps are those of all epochs."""

    target_seconds: float
    training_seconds: float
    disk: int
    memory: int  # of the training itself, weights included

    def __str__(self) -> str:
        whole = self.target_seconds + self.training_seconds
        return (
            f"about {_time(whole)}: targets {_time(self.target_seconds)}, training at most"
            f" {_time(self.training_seconds)}; {_bytes(self.disk)} on disk,"
            f" {_bytes(self.memory)} of memory"
        )


def forecast(
    teacher: Teacher, student: VitBackbone, *, targets: int, images: int, disk: int
) -> Forecast:
    """Time one target and two steps; the second step counts, the first warms up.

    Args:
        teacher: Gives a target.
        student: Ready to train; its weights stay as they are.
        targets: How many targets are missing.
        images: To train on, in every epoch.
        disk: Bytes that will be written.
    """
    config, module = teacher.config, Student(student, teacher.config)
    number = config.micro_batch or config.batch
    one_target, one_step, activations = 0.0, 0.0, 0
    for size, times in Counter(teacher.sizes).items():  # as many images have each of them
        fraction = times / len(teacher.sizes)
        if targets:
            started = time.perf_counter()
            teacher.clean_tokens(torch.zeros(3, *size), seed=0)
            one_target += fraction * (time.perf_counter() - started)
        seconds, kept = _time_step(module, _blank_batch(teacher, number, size), config.precision)
        one_step, activations = one_step + fraction * seconds, max(activations, kept)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    steps = config.epochs * images / number
    memory = weights + OPTIMIZER_BYTES * trained + activations
    return Forecast(targets * one_target, steps * one_step, disk, memory)


def _blank_batch(teacher: Teacher, number: int, size: Size) -> Batch:
    device, (height, width) = teacher.backbone.device, teacher.grid_of(size)
    pixels = torch.zeros(number, 3, *size, device=device)
    cls = torch.ones(number, teacher.backbone.network.embed_dim, device=device)
    patches = torch.ones(number, height * width, teacher.backbone.width, device=device)
    shown = torch.ones(number, height * width, dtype=torch.bool, device=device)
    return Batch(pixels, patches, cls, shown)


def doubts(images: int, sizes: Sequence[Size], native: Size, views: int) -> list[str]:
    """Say what makes a training likely to disappoint, one sentence each."""
    found = []
    if images < FEW:
        found.append(
            f"{images} images are few: below about {FEW} a training rarely helps on other images."
        )
    size = min(sizes, key=lambda one: abs(math.log(max(one) / max(native))))
    ratio = max(size) / max(native)
    if ratio > FAR or ratio < 1 / FAR:
        found.append(
            f"the images are {size[0]} x {size[1]} px, the model's own size is {native[0]} x"
            f" {native[1]} px: train at the size the model will be used at, with --size."
        )
    if views == 1:
        found.append("one view has nothing to average: the targets are the model's own tokens.")
    return found


def _time_step(module: Student, batch: Batch, precision: Precision) -> tuple[float, int]:
    """Take two steps, the first to warm up; returns seconds and bytes of activations."""
    half, seconds, activations = uses_bf16(batch.pixels.device, precision), 0.0, 0
    for _ in range(2):
        started = time.perf_counter()
        activations = _take_step(module, batch, half)
        seconds = time.perf_counter() - started
    return seconds, activations


def _take_step(module: Student, batch: Batch, half: bool) -> int:
    """Run forward and backward; returns the bytes of activations kept for the latter."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        with autocast(batch.pixels.device, half):
            loss = module([batch])["loss"]
        loss.backward()
    module.zero_grad()
    loss.item()  # waits for a GPU
    for parameter in module.parameters():
        seen.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(seen.values())


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
