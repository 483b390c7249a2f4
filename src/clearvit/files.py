"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearvit.errors import ClearvitError, StoreError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_JSON = 1 << 28  # bytes; the list of ten million images has fewer


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


def read_json(path: Path, error: type[ClearvitError] = StoreError) -> dict[str, Any]:
    """Read a JSON file that holds an object; whatever is wrong with it is raised as `error`."""
    try:
        check_regular(path, LARGEST_JSON)
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        reason = "nested too deeply" if isinstance(problem, RecursionError) else problem
        raise error(f"cannot read '{path}': {reason}") from problem
    if not isinstance(content, dict):
        raise error(f"'{path}' is not what was expected: it holds no object.")
    return content


def read_tensors(path: Path, error: type[ClearvitError] = StoreError) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; whatever is wrong with it is raised as `error`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_regular(path)
        return load_file(path)
    except (OSError, ValueError, KeyError, SafetensorError) as problem:
        raise error(f"cannot read '{path}': {problem}") from problem


def check_regular(path: Path, largest: int | None = None) -> None:
    """Refuse what is no regular file, since opening a pipe waits for ever; `largest` in bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if largest is not None and status.st_size > largest:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {largest}")


def check_space(out: Path, needed: int, advice: str = "Use another disk.") -> None:
    """Refuse to begin what the disk cannot hold, `needed` in bytes."""
    existing = next(p for p in [out, *out.absolute().parents] if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StoreError(
            f"this needs {needed / 1e9:.1f} GB and '{existing}' has {free / 1e9:.1f} GB free."
            f" {advice}"
        )
