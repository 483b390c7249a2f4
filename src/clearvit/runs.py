"""The one run directory: what decides a result is written down before the work, and compared.

A directory belongs to one run. The same command goes on where a killed run stopped; another command
is refused with a sentence that names what differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clearvit.errors import StoreError
from clearvit.files import (
    holds_others,
    read_json,
    refuse_url,
    remove_leftovers,
    why_not_written,
    write_json,
)
from clearvit.schema import Rule, check_content, list_of, one_of, text

PLAN = "plan.json"
RECORD = ".clearvit.json"
MARK = "clearvit"  # key of both that says which kind of run or result wrote it
FORMAT = 2
RECORD_RULES: dict[str, Rule] = {
    MARK: text,
    "format": one_of(FORMAT),
    "files": list_of(text, 0, 100_000),
}

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
        files: Glob patterns of what such a run writes; they stand in the plan, and `overwrite`
            removes nothing else.
        overwrite: Start again where a run of this kind stands, even one of the same plan.
        describe: Words the difference between two plans; given the keys, then both plans.
    """
    ours = json.loads(json.dumps({MARK: kind, "format": FORMAT, "files": list(files), **plan}))
    with _place(folder):
        remove_leftovers(folder)
        if not os.path.lexists(folder / PLAN):
            _refuse_others(folder, kind)
            write_json(folder / PLAN, ours)
            return
        theirs = read_json(folder / PLAN)
        if theirs.get(MARK) != kind:
            raise StoreError(f"'{folder}' holds no {kind} of clearvit. Choose another --out.")
        if theirs.get("files") != ours["files"]:
            raise StoreError(
                f"'{folder}' was written by another version of clearvit. Choose another --out."
            )
        differing = [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]
        if differing and not overwrite:
            changes = (describe or name_changes)(differing, theirs, ours)
            raise StoreError(
                f"'{folder}' was made by another run: {changes}. Choose another --out, or"
                " --overwrite to start again."
            )
        if overwrite:
            for pattern in files:
                for path in folder.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            write_json(folder / PLAN, ours)


def claim_files(folder: Path, names: Sequence[str], *, kind: str, strict: bool = True) -> None:
    """Take some file names of a directory for the result of a verb.

    The names are recorded in a hidden file. The same verb may replace what stands in the record;
    what another verb or somebody else wrote is refused.

    Args:
        folder: The directory.
        names: Files that the verb writes or removes there.
        kind: What they are, such as "cure".
        strict: Refuse also a directory that holds other files and no record.
    """
    with _place(folder):
        remove_leftovers(folder)
        known: list[str] = []
        if os.path.lexists(folder / RECORD):
            record = read_json(folder / RECORD)
            check_content(record, RECORD_RULES, where=str(folder / RECORD), error=StoreError)
            if record[MARK] != kind:
                raise StoreError(
                    f"'{folder}' holds a {record[MARK]} of clearvit, which is not replaced by a"
                    f" {kind}. Choose another --out."
                )
            known = record["files"]
        elif strict:
            _refuse_others(folder, kind)
        taken = [n for n in names if n not in known and os.path.lexists(folder / n)]
        if taken:
            raise StoreError(
                f"'{folder / taken[0]}' is there already and is no {kind} of clearvit. Choose"
                " another --out."
            )
        if not set(names) <= set(known):
            record_files(folder, [*known, *(n for n in names if n not in known)], kind=kind)


def record_files(folder: Path, names: Sequence[str], *, kind: str) -> None:
    """Write down which files of a directory a verb wrote."""
    write_json(folder / RECORD, {MARK: kind, "format": FORMAT, "files": list(names)})


def recorded_files(folder: Path, kind: str) -> list[str] | None:
    """Give the names in the record of a directory; None if it has none of this kind."""
    if not os.path.lexists(folder / RECORD):
        return None
    record = read_json(folder / RECORD)
    check_content(record, RECORD_RULES, where=str(folder / RECORD), error=StoreError)
    return [str(name) for name in record["files"]] if record[MARK] == kind else None


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[None]:
    """Turn what the file system says about an output directory into one sentence."""
    refuse_url(folder)
    try:
        if folder.is_file():
            raise StoreError(f"'{folder}' is a file. Choose another --out.")
        yield
    except (OSError, ValueError) as error:
        raise StoreError(
            f"'{folder}' cannot be used: {why_not_written(error)}. Choose another --out."
        ) from error


def _refuse_others(folder: Path, kind: str) -> None:
    if folder.exists() and holds_others(folder):
        raise StoreError(
            f"'{folder}' is not empty and holds no {kind} of clearvit. Choose another --out."
        )


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
