"""How commands start, speak and end in the same way."""

from __future__ import annotations

import functools
import os
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clearvit.progress import printable

if TYPE_CHECKING:
    from clearvit.images import Skipped

OTHER_IMAGES = "OTHER_IMAGES/"  # in a command to paste: images that took no part in a training
errors = Console(stderr=True)  # progress and notes; standard output is for results


@contextmanager
def warned(unless: str | None = None) -> Iterator[None]:
    """Print warnings at the end as our own, without those that contain `unless`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for one in caught:
        if unless is None or unless not in str(one.message):
            note(f"warning: {one.message}")


def prepare(threads: int | None) -> None:
    """Set the number of threads and silence libraries that talk to programmers, not to users."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when the library is imported
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", module="PIL")  # bad files are listed by us, with the reason
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def note(text: str) -> None:
    """Print a line on the error stream; control characters are escaped."""
    errors.print(printable(text), markup=False, highlight=False, soft_wrap=True)


@functools.lru_cache(maxsize=8)
def note_once(text: str) -> None:
    """Print a line on the error stream, however often it is said."""
    note(text)


def show(text: object) -> None:
    """Print a result for people on standard output; control characters are escaped."""
    print(printable(text), flush=True)


def report_skipped(skipped: Sequence[Skipped], shown: int = 20) -> None:
    """List bad files with the reason, at the end, where it is read."""
    if not skipped:
        return
    errors.print(f"warning: {len(skipped)} files were skipped", style="yellow")
    for bad in skipped[:shown]:
        note(f"  {bad.name}: {bad.reason}")
    if len(skipped) > shown:
        errors.print(f"  … and {len(skipped) - shown} more; --json lists all of them")


def require_images(count: int) -> None:
    """End with an error where no image could be read."""
    if not count:
        errors.print("error: no image could be read", style="bold red")
        raise typer.Exit(1)


def size_words(size: int | tuple[int, int] | None) -> tuple[str, ...]:
    """Repeat a size that was given, for the command that comes next."""
    if size is None:
        return ()
    return ("--size", str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}")


def next_step(*words: object) -> None:
    """End with the command that comes next, quoted for a shell, so that it can be pasted."""
    note(f"next: {shlex.join(map(str, words))}")
