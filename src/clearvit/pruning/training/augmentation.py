"""Augmentation as a function of the step and the image, so that a resumed run repeats it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from clearvit.backbones.guarded_timm import Mixup, create_transform
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.options import Size
from clearvit.pruning.config import PruneConfig
from clearvit.training.order import seeded_generator

MIN_AREA = 0.5  # of a random crop, as a fraction of the image
MIN_ASPECT = 0.75  # how much the aspect ratio of a crop differs from the image's at most


@contextmanager
def seeded(seed: int, number: int) -> Iterator[None]:
    """Seed every source of randomness that timm uses inside, and restore them afterwards."""
    value = seeded_generator(seed, number).initial_seed() % 2**32
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(value)
        random.seed(value)
        np.random.seed(value)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def random_crop(image: Image.Image, rng: torch.Generator) -> Image.Image:
    """Cut out at least half of an image, in nearly its aspect ratio; flip every second."""
    area, aspect, x, y, side = torch.rand(5, generator=rng).tolist()
    area = MIN_AREA + (1 - MIN_AREA) * area
    aspect = MIN_ASPECT ** (2 * aspect - 1)
    width, height = (min(1.0, (area * s) ** 0.5) for s in (aspect, 1 / aspect))
    left, top = x * (1 - width), y * (1 - height)
    box = (left, top, left + width, top + height)
    sides = (image.width, image.height, image.width, image.height)
    x0, y0, x1, y1 = (round(part * length) for part, length in zip(box, sides, strict=True))
    crop = image.crop((x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)))
    return ImageOps.mirror(crop) if side < 0.5 else crop


def deit_transform(preprocessing: Preprocessing, size: Size) -> Callable[[Image.Image], Tensor]:
    """DeiT's training transform: random resized crop, RandAugment, color jitter, random erasing."""
    transform: Callable[[Image.Image], Tensor] = create_transform(
        input_size=(3, *size),
        is_training=True,
        color_jitter=0.4,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )
    return transform


def make_mixup(config: PruneConfig, classes: int) -> Mixup | None:
    """Mixup and CutMix as DeiT uses them, one of the two per forward pass; None if both are 0."""
    if not (config.mixup or config.cutmix):
        return None
    return Mixup(
        mixup_alpha=config.mixup,
        cutmix_alpha=config.cutmix,
        prob=1.0,
        switch_prob=0.5,
        mode="batch",
        label_smoothing=config.smoothing,
        num_classes=classes,
    )
