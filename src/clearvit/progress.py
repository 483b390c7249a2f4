"""How long work says how far it is: one callback for every verb."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

SECONDS = 20.0  # between two lines in a log
SILENCE = 25.0  # seconds after which a log says that work goes on: one batch may take longer
FIRST, LONG = 3.0, 60.0  # seconds that are timed, and after which a time is worth saying
QUIET = "CLEARVIT_PROGRESS"  # set to 0 for silence


# What a terminal would obey instead of showing: control characters (line breaks and tabs apart) and
# marks that turn the direction of text round.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: object) -> str:
    """Write control characters as escapes, since names of files may hold anything."""
    return _CONTROL.sub(lambda mark: mark[0].encode("unicode_escape").decode(), str(text))


class Progress(Protocol):
    """Called with the stage, what is done of it, of how much, and a note on how it goes.

    A total of 0 makes the note a message of its own.
    """

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        """Report once; cheap enough to be called for every batch."""


class Meter:
    """Count what is done of one stage, whichever part of the work does it."""

    def __init__(self, progress: Progress | None, total: int, stage: str = "images") -> None:
        self.progress, self.total, self.stage, self.done = progress, total, stage, 0

    def advance(self, count: int = 1) -> None:
        """Add to what is done; it never passes the total."""
        self.done = min(self.done + count, self.total)
        if self.progress:
            self.progress(self.stage, self.done, self.total)

    def finish(self) -> None:
        """Count what was not needed as done."""
        self.advance(self.total - self.done)


def is_main_process() -> bool:
    """Tell whether this process is the one that speaks, where a launcher started several."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Give a callback that draws bars in a terminal or notebook and writes lines to a log."""
    if not is_main_process() or os.environ.get(QUIET) == "0":
        yield silent
    elif sys.stderr.isatty() or "ipykernel" in sys.modules:
        with _bars() as progress:
            yield progress
    else:
        with log_that_moves() as progress:
            yield progress


@contextmanager
def log_that_moves(
    write: Callable[[str], object] | None = None, tick: float = 1.0
) -> Iterator[Progress]:
    """Give the callback of `log_progress`; a line also comes while one batch takes long."""
    say = write or _to_stderr
    last, stage, ended = time.monotonic(), "", threading.Event()

    def note_and_say(text: str) -> None:
        nonlocal last
        last = time.monotonic()
        say(text)

    lines = log_progress(note_and_say)

    def progress(name: str, done: int, total: int, note: str = "") -> None:
        nonlocal stage
        stage = f"{name}: {done}/{total}, " if total else stage
        lines(name, done, total, note)

    def pulse() -> None:
        while not ended.wait(tick):
            if time.monotonic() - last >= SILENCE:
                note_and_say(f"{stage}still working")

    thread = threading.Thread(target=pulse, name="clearvit log", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()


def log_progress(
    write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Give a callback that writes a line every 20 seconds, and messages at once.

    A stage that will take more than a minute says so after its first seconds.
    """
    say = write or _to_stderr
    last, seen = clock(), set[str]()
    begun: dict[str, tuple[float, int]] = {}
    announced = set[str]()

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        nonlocal last
        if not total:
            say(note)
            return
        since, before = begun.setdefault(stage, (clock(), done))
        if stage not in announced and done > before and clock() - since >= FIRST:
            announced.add(stage)
            left = (clock() - since) / (done - before) * (total - done)
            if left > LONG:
                say(f"{stage}: about {show_duration(left)} to go")
        if clock() - last >= SECONDS or (done >= total and stage in seen):
            last = clock()
            seen.add(stage) if done < total else seen.discard(stage)
            say(f"{stage}: {done}/{total}{f' ({note})' if note else ''}")

    return progress


def _to_stderr(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def show_duration(seconds: float) -> str:
    """Write a time in the unit people would use."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """Report nothing; for verbs that are called by other verbs."""


@contextmanager
def _bars() -> Iterator[Progress]:
    """Draw one bar per stage; messages appear above them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    stages = TextColumn("{task.description:16}")
    notes = TextColumn("{task.fields[note]}")
    columns = (stages, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), notes)
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def progress(stage: str, done: int, total: int, note: str = "") -> None:
            if not total:
                bars.console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
                return
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, note="")
            bars.update(tasks[stage], completed=done, total=total, note=note)

        yield progress
