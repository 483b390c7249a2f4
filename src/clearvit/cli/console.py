"""How commands start, speak and end in the same way."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

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

    from clearvit.backbones.backbone import Backbone
    from clearvit.images import Skipped

errors = Console(stderr=True)  # progress and notes; standard output is for results


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
    silent = not is_first()
    with Progress(*columns, *times, console=errors, disable=silent) as progress:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int, how: str) -> None:
            if phase == "note":
                if not silent:
                    note(how)
                return
            if phase not in tasks:
                name = names.get(phase, phase)
                tasks[phase] = progress.add_task(name, total=total, note="")
            progress.update(tasks[phase], completed=done, total=total, note=how)

        yield report


def is_first() -> bool:
    """Tell whether this process is the one that speaks, where a launcher started several."""
    return os.environ.get("RANK", "0") == "0"


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


def load_model(
    model: str,
    positions: str | None,
    device: str,
    size: int | tuple[int, int] | None = None,
) -> Backbone:
    """Load a backbone as the options say."""
    from clearvit.backbones.load import load

    return load(model, size=size, positions=positions, device=device)  # type: ignore[arg-type]


def note(text: str) -> None:
    """Print one line on the error stream, as it is."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


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


def next_step(command: str) -> None:
    """End with the command that comes next."""
    note(f"next: {command}")
