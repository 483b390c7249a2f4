"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with what is done and with the total."""


class Meter:
    """Count what is done, whichever part of the work does it."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def advance(self, count: int) -> None:
        """Add to what is done; it never passes the total."""
        self.done = min(self.done + count, self.total)
        if self.progress:
            self.progress(self.done, self.total)

    def finish(self) -> None:
        """Count what was not needed as done."""
        self.advance(self.total - self.done)
