"""A directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clearvit.errors import StoreError
from clearvit.files import PART, part_name, remove_leftovers, why_not_written
from clearvit.runs import RECORD, record_files, recorded_files

KIND = "export"


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Give an empty neighbor of `out` to fill; it takes the name only on success.

    Args:
        out: The directory; one that holds an earlier export and nothing else is replaced, others
            are refused.
    """
    temporary = out.with_name(part_name(out.name))
    old = out.with_name(part_name(out.name))
    try:
        _check_free(out)
        temporary.mkdir(parents=True)
        remove_leftovers(out.parent)
        yield temporary
        record_files(temporary, [path.name for path in temporary.iterdir()], kind=KIND)
        if out.exists():
            os.replace(out, old)
        os.replace(temporary, out)
    except OSError as error:
        raise StoreError(
            f"'{out}' cannot be written: {why_not_written(error)}. Choose another directory, or"
            " make room."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _check_free(out: Path) -> None:
    if not os.path.lexists(out):
        return
    ours = recorded_files(out, KIND) if out.is_dir() else None
    found = [path.name for path in out.iterdir()] if out.is_dir() else [out.name]
    others = [n for n in found if n not in (ours or ()) and n != RECORD and not PART.fullmatch(n)]
    if others:
        raise StoreError(
            f"'{out}' is there already and holds what is no export of clearvit, such as"
            f" '{others[0]}'; choose another directory."
        )
