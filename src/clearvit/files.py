"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearvit.errors import StoreError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary file of the same name to write to; it takes its place only on success.

    It stands in a directory of its own beside `path`, so that whatever a library puts next to the
    file it writes (safetensors has a temporary file too) can be found and removed after a kill. The
    data is on disk before the rename, so a crash leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary = folder / path.name
    try:
        folder.mkdir(exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask gives; safetensors would say 0600
        yield temporary
        temporary.chmod(mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Write as `written_whole` does, to a path that a user chose: a failure is a `StoreError`."""
    try:
        with written_whole(path) as temporary:
            yield temporary
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"'{path}' cannot be written ({reason}); choose another path.") from error


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of processes that were killed while writing."""
    for part in folder.glob(".*.part"):
        if not _alive(int(part.name.split(".")[-2])):
            shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(True)


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


def read_json(path: Path) -> dict[str, Any]:
    """Read one of our own JSON files, which hold an object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read '{path}': {error}") from error
    if not isinstance(content, dict):
        raise StoreError(f"'{path}' is not what clearvit wrote.")
    return content


def check_space(out: Path, needed: int, advice: str = "Use another disk.") -> None:
    """Refuse to begin what the disk cannot hold, `needed` in bytes."""
    existing = next(p for p in [out, *out.absolute().parents] if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StoreError(
            f"this needs {needed / 1e9:.1f} GB and '{existing}' has {free / 1e9:.1f} GB free."
            f" {advice}"
        )
