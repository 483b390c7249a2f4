"""Keep as many patches as a wanted speed allows, measured on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError

Clock = Callable[[], float]
Pass = Callable[[], object]
ROUNDS = 5  # of one pass each, after one that warms up
STEPS = 6  # halvings of the range of shares: it ends 1/64 wide
TARGET = re.compile(r"(\d+(?:\.\d+)?)x")


@dataclass(frozen=True)
class Speed:
    """What `keep="2x"` found."""

    target: float  # how many times as fast as the dense model
    keep: float  # the share rho that reaches it
    ratio: float  # what it reached, median over rounds
    size: Size  # (height, width) in pixels
    threads: int

    def __str__(self) -> str:
        height, width = self.size
        return (
            f"keep {self.keep:.3f}: {self.ratio:.2f}x as fast as dense (wanted {self.target:g}x),"
            f" {height}x{width} px, batch 1, {self.threads} threads"
        )


def speed_target(keep: str) -> float:
    """Read "2x" or "1.5x"."""
    found = TARGET.fullmatch(keep.strip())
    if found is None or float(found[1]) <= 1:
        raise ModelError(
            f"keep is {keep!r}; use a share in (0, 1], a list with one per stage, or a speed above"
            ' 1 such as "1.5x" or "2x".'
        )
    return float(found[1])


def speedup(dense: Pass, pruned: Pass, *, rounds: int = ROUNDS, clock: Clock) -> float:
    """Time two passes in turn; give how many times as fast the second is, median over rounds."""
    ratios = []
    for number in range(rounds + 1):
        times = []
        for run in (dense, pruned):
            start = clock()
            run()
            times.append(clock() - start)
        if number:  # the first round warms up
            ratios.append(times[0] / times[1])
    return median(ratios)


def largest_share(
    ratio: Callable[[float], float], target: float, *, least: float, steps: int = STEPS
) -> tuple[float, float]:
    """Find the largest share whose speed reaches the target by halving the range.

    Args:
        ratio: Measures the speed of a share, as a multiple of the dense model's.
        target: Speed to reach, above 1.
        least: The smallest share worth trying.
        steps: Halvings.

    Returns:
        The share and the speed measured for it.
    """
    found = (least, ratio(least))
    if found[1] < target:
        raise ModelError(
            f"{target:g}x cannot be reached: with one patch left after the last stage it is"
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


def share_for_speed(
    dense: VitBackbone,
    keep: str,
    pruned: Callable[[float], VitBackbone],
    *,
    stages: int,
    clock: Clock = time.perf_counter,
) -> Speed:
    """Choose rho for a speed such as "2x", by timing forward passes of one image at its size.

    Args:
        dense: The model to be faster than.
        keep: The speed.
        pruned: Makes the pruned model of a share.
        stages: How many there are; the smallest share leaves one patch after the last.
        clock: Seconds; other clocks are for tests.
    """
    target, size = speed_target(keep), dense.fitting_size()
    pixels = torch.randn(1, 3, *size).to(dense.device, dense.dtype)
    patches = size[0] // dense.patch[0] * (size[1] // dense.patch[1])

    def passing(backbone: VitBackbone) -> Pass:
        return lambda: float(backbone.forward(pixels).patches[0, 0, 0])  # waits for a GPU

    def ratio(share: float) -> float:
        return speedup(passing(dense), passing(pruned(share)), clock=clock)

    with torch.no_grad():
        share, reached = largest_share(ratio, target, least=patches ** (-1 / stages))
    return Speed(target, share, reached, size, torch.get_num_threads())
