"""What an image costs: models take turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone


def milliseconds(
    backbones: Sequence[Backbone],
    pixels: Sequence[Tensor],
    *,
    repeats: int,
    advance: Callable[[int], None] | None = None,
) -> list[tuple[float, ...]]:
    """Time every model on its own pixels (1, 3, height, width), `repeats` rounds of one pass each.

    The first round is not counted: it warms up.
    """
    times: list[list[float]] = [[] for _ in backbones]
    with torch.no_grad():
        for round_number in range(repeats + 1):
            for backbone, picture, measured in zip(backbones, pixels, times, strict=True):
                moved = picture.to(backbone.device, backbone.dtype)
                _wait(backbone.device)
                start = time.perf_counter()
                backbone.forward(moved)
                _wait(backbone.device)
                if round_number:
                    measured.append(1000 * (time.perf_counter() - start))
                if advance:
                    advance(1)
    return [tuple(measured) for measured in times]


def cost_ratio(times: Sequence[float], first: Sequence[float]) -> float:
    """Give the median over rounds of a model's time as a multiple of the first model's."""
    return median(time / other for time, other in zip(times, first, strict=True))


def _wait(device: torch.device) -> None:
    """Let a GPU finish: it works behind our back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
