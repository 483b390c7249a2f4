"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary neighbour of `path` to write to; it takes the name only on success.

    The data is on disk before the rename, so a crash leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask gives; safetensors would say 0600
        yield temporary
        temporary.chmod(mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of processes that were killed while writing."""
    for part in folder.glob(".*.part"):
        if not _alive(int(part.name.split(".")[-2])):
            part.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 asks on POSIX only; elsewhere it would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def why_not_written(error: Exception) -> str:
    """Say in a few words why a file could not be written; safetensors hides the number."""
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space" in str(error)
    return "the disk is full" if full else str(error)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, in one piece."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
