"""What every command prints in the same way."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Task, TaskID

    from clearvit.images import Skipped

errors = Console(stderr=True)  # progress and notes; standard output is for results

Model = Annotated[
    str, typer.Argument(help="timm:NAME, hf:ID, openclip:ARCH/TAG, dir:PATH or demo.")
]
SizeOption = Annotated[
    str | None,
    typer.Option("--size", help="Pixels, 518 or 448x672 (height x width); native by default."),
]
PositionsOption = Annotated[
    str | None,
    typer.Option("--positions", help="Rule for resizing position embeddings; else the source's."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps …")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of the network; all by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        """Show the speed of the recent past."""
        return Text("" if task.speed is None else f"{task.speed:.1f} images/s", style="cyan")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with speed and time left on the error stream; call it with (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Rate())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=errors) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def phases(names: Mapping[str, str]) -> Iterator[Callable[[str, int, int, str], None]]:
    """Show one bar per phase of a long job, and notes above them, in the first process only.

    Call it with a phase, what is done of it, of how much, and how it goes. The phase "note" prints.
    """
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    silent = os.environ.get("RANK", "0") != "0"
    with Progress(*columns, *times, console=errors, disable=silent) as progress:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int, note: str) -> None:
            if phase == "note":
                if not silent:
                    errors.print(note, markup=False, highlight=False, soft_wrap=True)
                return
            if phase not in tasks:
                name = names.get(phase, phase)
                tasks[phase] = progress.add_task(name, total=total, note="")
            progress.update(tasks[phase], completed=done, total=total, note=note)

        yield report


def parse_size(text: str | None) -> int | tuple[int, int] | None:
    """Read "518" or "448x672"."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"'{text}' is no size; write 518 or 448x672.")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def parse_blocks(text: str | None) -> tuple[int, ...]:
    """Read "3,8,-1"."""
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no list of blocks; write 3,8,-1.") from None


def prepare(threads: int | None) -> None:
    """Set the number of threads and silence libraries that talk to programmers, not to users."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when the library is imported
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", module="PIL")  # bad files are listed by us, with the reason
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def report_skipped(skipped: Sequence[Skipped], shown: int = 20) -> None:
    """List bad files with the reason, at the end, where it is read."""
    if not skipped:
        return
    errors.print(f"warning: {len(skipped)} files were skipped", style="yellow")
    for bad in skipped[:shown]:
        errors.print(f"  {bad.name}: {bad.reason}", markup=False, highlight=False, soft_wrap=True)
    if len(skipped) > shown:
        errors.print(f"  … and {len(skipped) - shown} more; --json lists all of them")


def next_step(command: str) -> None:
    """End with the command that comes next."""
    errors.print(f"next: {command}", markup=False, highlight=False, soft_wrap=True)
