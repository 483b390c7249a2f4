"""The one run directory: what decides a result is written down before the work, and compared.

A directory belongs to one run. The same command goes on where a killed run stopped; another command
is refused with a sentence that names what differs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clearvit.errors import StoreError
from clearvit.files import read_json, remove_leftovers, write_json

PLAN = "plan.json"
MARK = "clearvit"  # key of the plan that says which kind of run wrote it
FORMAT = 2

Plan = Mapping[str, Any]
Describe = Callable[[list[str], Plan, Plan], str]


def claim(
    folder: Path,
    plan: Plan,
    *,
    kind: str,
    files: Sequence[str],
    overwrite: bool = False,
    describe: Describe | None = None,
) -> None:
    """Take a directory for a run, or go on with one that was begun with the same plan.

    Args:
        folder: The directory.
        plan: All that decides the result, as JSON can hold it.
        kind: Which kind of run this is, such as "tokens"; another kind is refused.
        files: Glob patterns of what such a run writes; `overwrite` removes only these.
        overwrite: Start again where another run of this kind stands.
        describe: Words the difference between two plans; given the keys, then both plans.
    """
    ours = json.loads(json.dumps({MARK: kind, "format": FORMAT, **plan}))
    if folder.is_file():
        raise StoreError(f"'{folder}' is a file. Choose another --out.")
    remove_leftovers(folder)
    if not (folder / PLAN).exists():
        if folder.exists() and any(folder.iterdir()):
            raise StoreError(
                f"'{folder}' is not empty and holds no {kind} of clearvit. Choose another --out."
            )
        write_json(folder / PLAN, ours)
        return
    theirs = read_json(folder / PLAN)
    if theirs.get(MARK) != kind:
        raise StoreError(f"'{folder}' holds no {kind} of clearvit. Choose another --out.")
    differing = [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]
    if differing and not overwrite:
        changes = (describe or name_changes)(differing, theirs, ours)
        raise StoreError(
            f"'{folder}' was made by another run: {changes}. Choose another --out, or --overwrite"
            " to start again."
        )
    if overwrite and differing:
        for pattern in files:
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json(folder / PLAN, ours)


def name_changes(keys: list[str], theirs: Plan, ours: Plan) -> str:
    """Name every option that differs, with both values."""
    return "; ".join(
        f"{key} was {_shorten(theirs.get(key))}, now {_shorten(ours.get(key))}" for key in keys
    )


def _shorten(value: Any, most: int = 40) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


@contextlib.contextmanager
def output_directory(out: str | Path | None) -> Iterator[Path]:
    """Give the output directory, or a temporary one that vanishes if there is none."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="clearvit-") as temporary:
        yield Path(temporary)
