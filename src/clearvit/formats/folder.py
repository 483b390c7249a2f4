"""A directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clearvit.errors import StoreError
from clearvit.files import why_not_written


@contextmanager
def atomic_folder(out: Path, marker: str) -> Iterator[Path]:
    """Give an empty neighbor of `out` to fill; it takes the name only on success.

    Args:
        out: The directory; one that an earlier export left is replaced, others are refused.
        marker: The file by which such a directory is known.
    """
    _check_free(out, marker)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    old = out.with_name(f".{out.name}.{os.getpid()}.old.part")
    try:
        temporary.mkdir(parents=True)
        yield temporary
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


def _check_free(out: Path, marker: str) -> None:
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / marker).is_file()):
        raise StoreError(
            f"'{out}' is there already and is no export of this kind; choose another directory."
        )
