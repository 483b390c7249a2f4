"""Passes take turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Clock = Callable[[], float]
Pass = Callable[[], object]
FEWEST = 3  # rounds, whatever the patience


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of what was measured."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Summarise some numbers."""
        return Spread(median(values), min(values), max(values))


def take_turns(
    passes: Sequence[Pass],
    *,
    repeats: int,
    patience: float,
    clock: Clock = time.perf_counter,
    advance: Callable[[], None] | None = None,
) -> list[list[float]]:
    """Time each pass once per round; another one goes first in every round.

    Args:
        passes: What to time.
        repeats: Rounds at most, after one that only warms up.
        patience: Seconds after which no new round begins, once there are three.
        clock: Seconds.
        advance: Called after each pass.

    Returns:
        Seconds, one list per pass with one number per round.
    """
    times: list[list[float]] = [[] for _ in passes]
    began = clock()
    for number in range(repeats + 1):
        if number > FEWEST and clock() - began > patience:
            break
        for turn in range(len(passes)):
            place = (turn + number) % len(passes)
            start = clock()
            passes[place]()
            seconds = clock() - start
            if number:
                times[place].append(seconds)
            if advance:
                advance()
    return times


def ratios(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """How many times as fast as the first the other was, round by round."""
    return [one / two for one, two in zip(first, other, strict=True)]
