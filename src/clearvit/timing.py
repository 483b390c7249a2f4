"""The one timer: passes take turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Clock = Callable[[], float]
Pass = Callable[[], object]
MIN_ROUNDS = 3  # whatever the patience
REST = 0.03  # seconds in which the threads of a library that wait busily after a pass go to sleep


@dataclass(frozen=True)
class Spread:
    """The median and the range of what was measured."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Summarize some numbers."""
        return Spread(median(values), min(values), max(values))


def time_interleaved(
    passes: Sequence[Pass],
    *,
    rounds: int,
    patience: float = float("inf"),
    clock: Clock = time.perf_counter,
    advance: Callable[[], None] | None = None,
    rest: float = 0.0,
) -> list[list[float]]:
    """Time each pass once per round; another one goes first in every round.

    Args:
        passes: What to time; each must wait for its device (see `synchronize`).
        rounds: Rounds at most, after one that only warms up.
        patience: Seconds after which no new round begins, once there are three.
        clock: Seconds; other clocks are for tests.
        advance: Called after each pass.
        rest: Seconds of sleep before each pass; `REST` where passes belong to several libraries
            with threads of their own, which else take the cores from each other.

    Returns:
        Seconds, one list per pass with one number per round.
    """
    times: list[list[float]] = [[] for _ in passes]
    began = clock()
    for number in range(rounds + 1):
        if number > MIN_ROUNDS and clock() - began > patience:
            break
        for turn in range(len(passes)):
            index = (turn + number) % len(passes)
            if rest:
                time.sleep(rest)
            start = clock()
            passes[index]()
            seconds = clock() - start
            if number:
                times[index].append(seconds)
            if advance:
                advance()
    return times


def speed_ratios(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """Give, round by round, how many times as fast as the first the other was."""
    return [one / two for one, two in zip(first, other, strict=True)]


def synchronize(device: Any) -> None:
    """Wait until a GPU (a `torch.device`) has finished; a CPU always has."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
