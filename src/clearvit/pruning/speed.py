"""Keep as many patches as a wanted speed allows, measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.pruning.config import speed_target
from clearvit.timing import Clock, Pass, speed_ratios, time_interleaved

ROUNDS = 5  # of one pass each, after one that warms up
STEPS = 6  # bisections of the range of fractions: it ends 1/64 wide


@dataclass(frozen=True)
class Speed:
    """What `keep="2x"` found."""

    target: float  # how many times as fast as the dense model
    keep: float  # the fraction that reaches it
    ratio: float  # what it reached, median over rounds
    size: Size  # (height, width) in pixels
    threads: int

    def __str__(self) -> str:
        height, width = self.size
        return (
            f"keep {self.keep:.3f}: {self.ratio:.2f}x as fast as dense (wanted {self.target:g}x),"
            f" {height}x{width} px, batch 1, {self.threads} threads"
        )


def bisect_keep(
    ratio: Callable[[float], float], target: float, *, least: float, steps: int = STEPS
) -> tuple[float, float]:
    """Find the largest fraction whose speed reaches the target.

    Args:
        ratio: Measures the speed of a fraction, as a multiple of the dense model's.
        target: Speed to reach, above 1.
        least: The smallest fraction worth trying.
        steps: Bisections.

    Returns:
        The fraction and the speed measured for it.
    """
    found = (least, ratio(least))
    if found[1] < target:
        raise ModelError(
            f"{target:g}x cannot be reached: with the fewest patches (keep {least:.3g}) it is"
            f" {found[1]:.2f}x. Prune earlier (stages=[1, ...]), or ask for less."
        )
    low, high = least, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        reached = ratio(middle)
        if reached >= target:
            low, found = middle, (middle, reached)
        else:
            high = middle
    return found


def find_keep(
    dense: VitBackbone,
    keep: str,
    prune_to: Callable[[float], VitBackbone],
    *,
    stages: int,
    clock: Clock = time.perf_counter,
) -> Speed:
    """Choose `keep` for a speed such as "2x", by timing forward passes of one image.

    Args:
        dense: The model to be faster than; its default size is used.
        keep: The speed.
        prune_to: Makes the pruned model of a fraction.
        stages: How many there are; the smallest fraction leaves one patch after the last.
        clock: Seconds; other clocks are for tests.
    """
    target, size = speed_target(keep), dense.fitting_size()
    pixels = torch.randn(1, 3, *size).to(dense.device, dense.dtype)
    patches = size[0] // dense.patch[0] * (size[1] // dense.patch[1])

    def pass_of(backbone: VitBackbone) -> Pass:
        return lambda: float(backbone.forward(pixels).patches[0, 0, 0])  # waits for a GPU

    def ratio(fraction: float) -> float:
        passes = (pass_of(dense), pass_of(prune_to(fraction)))
        return median(speed_ratios(*time_interleaved(passes, rounds=ROUNDS, clock=clock)))

    with torch.no_grad():
        fraction, reached = bisect_keep(ratio, target, least=patches ** (-1 / stages))
    return Speed(target, fraction, reached, size, torch.get_num_threads())
