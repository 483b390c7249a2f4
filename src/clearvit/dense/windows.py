"""Windows that slide over an image, and the average of what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

Window = tuple[int, int, int, int]  # top, left, bottom, right in pixels, ends exclusive


@dataclass(frozen=True)
class Sliding:
    """How windows slide over an image whose shorter side is `size`; all but the batch in pixels."""

    size: int | tuple[int, int] | None = None  # None is the backbone's own
    crop: int | None = None  # side of a window; None is the shorter side of `size`
    stride: int | None = None  # None is 341 / 518 of the crop
    batch: int = 8  # windows per forward pass


def starts(length: int, crop: int, stride: int) -> list[int]:
    """Give the first pixel of each window along one side; the last one is clamped to the end."""
    if crop >= length:
        return [0]
    count = -(-(length - crop) // stride) + 1
    return [min(i * stride, length - crop) for i in range(count)]


def windows(size: tuple[int, int], crop: tuple[int, int], stride: int) -> list[Window]:
    """Cover (height, width) with windows, row by row."""
    height, width = min(crop[0], size[0]), min(crop[1], size[1])
    return [
        (top, left, top + height, left + width)
        for top in starts(size[0], height, stride)
        for left in starts(size[1], width, stride)
    ]


def averaged(parts: Iterable[tuple[Window, Tensor]], size: tuple[int, int]) -> Tensor:
    """Average the scores (K, height, width) of overlapping windows over the whole image."""
    total: Tensor | None = None
    counts = torch.zeros(size)
    for (top, left, bottom, right), scores in parts:
        if total is None:
            total = torch.zeros(len(scores), *size)
        total[:, top:bottom, left:right] += scores.cpu()
        counts[top:bottom, left:right] += 1
    if total is None or not bool(counts.all()):
        raise ValueError("the windows do not cover the image")
    return total / counts
