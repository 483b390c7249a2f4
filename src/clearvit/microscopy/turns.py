"""Who may run a backbone, and when: at once, or in turn with others, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from clearvit.backbones.backbone import Backbone

T = TypeVar("T")


class Turn(Protocol):
    """Runs one batch of a backbone and gives what it returns."""

    def __call__(self, backbone: Backbone, work: Callable[[], T], /) -> T:
        """Run `work`, which uses the backbone, when its turn comes."""


def at_once(backbone: Backbone, work: Callable[[], T], /) -> T:
    """Run a batch without waiting; for a caller who has the backbone alone."""
    return work()


class Workers:
    """One thread per backbone, which takes batches in the order in which they come.

    A caller asks for one batch, waits for it and asks again, so of several callers none waits for
    more than one batch of each other one.
    """

    def __init__(self, backbones: Sequence[Backbone]) -> None:
        self._threads = {
            id(_network_owner(backbone)): ThreadPoolExecutor(1, f"backbone-{number}")
            for number, backbone in enumerate(backbones)
        }

    def run(self, backbone: Backbone, work: Callable[[], T], /) -> T:
        """Run a batch in the thread of its backbone; with views it is that of the model inside."""
        found: T = self._threads[id(_network_owner(backbone))].submit(work).result()
        return found

    def close(self) -> None:
        """End the threads; batches that wait are dropped."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)


def _network_owner(backbone: Backbone) -> Backbone:
    """Give the backbone inside, of one that averages views."""
    inner = getattr(backbone, "inner", None)
    return _network_owner(inner) if isinstance(inner, Backbone) else backbone
