"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearvit.errors import ClearvitError, StoreError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_JSON = 1 << 28  # bytes; the list of ten million images has fewer
MADE_BY = "clearvit"  # the mark in files that a user may name
PART = re.compile(r"\..*\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d{1,10})-[0-9a-f]{8}\.part", re.DOTALL)
LONGEST_NAME = 255  # bytes, on nearly every disk
SCHEME = re.compile(  # what a URL begins with, as the first part of a path
    r"(s3a?|gs|gcs|az|abfss?|adl|oss|hf|hdfs|https?|s?ftp|file|memory):", re.IGNORECASE
)
PART_SECONDS = 86400.0  # after which a temporary file of another machine is a leftover


ADVICE = (
    "What was finished before is kept; make room or choose another place, and run the same command"
    " again."
)


@contextmanager
def written_whole(path: Path, advice: str = ADVICE) -> Iterator[Path]:
    """Give a temporary file of the same name to write to; it takes its place only on success.

    It stands in a directory of its own beside `path`, so that whatever a library puts next to the
    file it writes (safetensors has a temporary file too) can be found and removed after a kill. The
    data is on disk before the rename, so a crash leaves the old file or the new one.

    Raises:
        StoreError: The file cannot be written; in one sentence why, and the advice.
    """
    refuse_url(path)
    part = path.with_name(part_name(path.name))
    temporary = part / path.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean_once(path.parent)
        part.mkdir()
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask gives; safetensors would say 0600
        yield temporary
        temporary.chmod(mode)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        if not _is_of_disk(error):
            raise
        reason = why_not_written(error)
        raise StoreError(f"'{path}' cannot be written: {reason}. {advice}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def replace_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Write as `written_whole` does, to a path that a user chose.

    A file that is there already is replaced only if clearvit wrote it, or if `overwrite` says so.
    """
    if not overwrite:
        check_replaceable(path)
    with written_whole(path) as temporary:
        yield temporary


def check_replaceable(path: Path) -> None:
    """Refuse to replace a file that does not carry clearvit's mark (PNG, HTML and JSON do)."""
    refuse_url(path)
    try:
        if not os.path.lexists(path):
            if path.parent.exists() and not path.parent.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"'{path.parent}' is no directory")
            return
        if path.is_file() and _is_ours(path):
            return
    except OSError as error:
        reason = why_not_written(error)
        raise StoreError(f"'{path}' cannot be written: {reason}. Choose another --out.") from error
    raise StoreError(
        f"'{path}' is there already and was not written by clearvit. Choose another path, or"
        " --overwrite where the command has it."
    )


def check_place(path: Path) -> None:
    """Refuse, before any work, a place where nothing can be written; nothing is made there."""
    refuse_url(path)
    try:
        if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        existing = next(p for p in [path, *path.absolute().parents] if _is_there(p))
        if existing != path and not existing.is_dir():
            raise StoreError(f"'{existing}' is no directory. Choose another --out.")
        target = existing if existing.is_dir() else existing.parent
        os.stat(target)
        if not os.access(target, os.W_OK | os.X_OK) or os.path.lexists(path) != path.exists():
            raise PermissionError(errno.EACCES, "no permission to write there, or a broken link")
    except (OSError, ValueError) as error:
        reason = why_not_written(error)
        raise StoreError(f"'{path}' cannot be written: {reason}. Choose another --out.") from error


def refuse_url(path: Path) -> None:
    """Refuse a URL that was taken for a path: it would become a folder named "s3:"."""
    if path.parts and SCHEME.fullmatch(path.parts[0]):
        url = path.as_posix().replace(":/", "://", 1)
        raise StoreError(
            f"'{url}' is a URL, and this is written on this machine only. Choose a folder as --out;"
            " an index can be written to a bucket."
        )


def _is_there(path: Path) -> bool:
    """Tell whether a path leads to anything; a name that is too long is an error, not absent."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_ours(path: Path) -> bool:
    """Look for the mark: a text in the head of PNG and HTML, the first key of JSON."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"\x89PNG"):
        return b"tEXtSoftware\0" + MADE_BY.encode() in head
    text = head.decode("utf-8", "replace")
    if text.startswith("{"):
        return re.match(rf'{{\s*"made_by": "{MADE_BY}"', text) is not None
    return re.search(rf'<meta name="generator" content="{MADE_BY}\b', text) is not None


def short_name(name: str, most: int = 200) -> str:
    """Cut a file name to `most` bytes, so that a suffix fits behind it; a hash tells them apart."""
    if len(os.fsencode(name)) <= most:
        return name
    mark = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    return f"{name.encode('utf-8', 'replace')[: most - 9].decode('utf-8', 'ignore')}-{mark}"


def part_name(name: str) -> str:
    """Name a temporary neighbor of a file: whose it is, and random; of any length it fits a disk.

    The owner is a hash of this machine (and of its space of process numbers, since containers have
    their own) and the number of this process.
    """
    return f".{name[:32]}.{_machine()}-{os.getpid()}-{secrets.token_hex(4)}.part"


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of our own processes that were killed while writing.

    Those of other machines on a shared disk go when they are a day old; whatever is not named as
    `part_name` does is left alone.
    """
    try:
        found = [entry for entry in folder.iterdir() if entry.name.endswith(".part")]
    except OSError:
        return
    for part in found:
        owner = PART.fullmatch(part.name)
        if owner and _is_dead(owner["machine"], int(owner["pid"]), part):
            shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(True)


def holds_others(folder: Path) -> bool:
    """Tell whether a directory holds anything but temporary files of ours."""
    return any(not PART.fullmatch(entry.name) for entry in folder.iterdir())


@functools.lru_cache(maxsize=1024)
def _clean_once(folder: Path) -> None:
    """Remove what killed runs left, once per directory and process: listing is not free."""
    remove_leftovers(folder)


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()}{space}".encode()).hexdigest()[:8]


def _is_dead(machine: str, pid: int, part: Path) -> bool:
    if machine == _machine():
        return not _alive(pid)
    try:
        return time.time() - part.stat().st_mtime > PART_SECONDS
    except OSError:
        return False


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 asks on POSIX only; elsewhere it would end the process
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_of_disk(error: Exception) -> bool:
    """Tell whether writing failed; safetensors has an error of its own for it."""
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError"


def why_not_written(error: Exception) -> str:
    """Say in a few words why a file could not be written; safetensors hides the number."""
    number = getattr(error, "errno", None)
    if number == errno.ENOSPC or "No space" in str(error) or "os error 28" in str(error):
        return "the disk is full"
    return str(getattr(error, "strerror", None) or error).lower()


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, in one piece, into a directory of ours."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def replace_json(path: Path, content: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Write JSON with clearvit's mark to a path that a user chose, see `replace_file`."""
    if not overwrite:
        check_replaceable(path)
    write_json(path, {"made_by": MADE_BY, **content})


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


def hash_file(path: Path) -> str:
    """Give the sha256 of a file; about a second per gigabyte."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_regular(path: Path, largest: int | None = None) -> None:
    """Refuse what is no regular file, since opening a pipe waits for ever; `largest` in bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if largest is not None and status.st_size > largest:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {largest}")


def check_space(out: Path, needed: int, advice: str = "Use another disk.") -> None:
    """Refuse to begin what the disk cannot hold, `needed` in bytes."""
    try:
        existing = next(p for p in [out, *out.absolute().parents] if p.exists())
        free = shutil.disk_usage(existing).free
    except (OSError, ValueError) as error:
        raise StoreError(f"'{out}' cannot be written: {why_not_written(error)}.") from error
    if needed > free:
        raise StoreError(
            f"this needs {needed / 1e9:.1f} GB and '{existing}' has {free / 1e9:.1f} GB free."
            f" {advice}"
        )


def check_tensors(path: Path, error: type[ClearvitError] = StoreError) -> None:
    """Refuse a file that is no safetensors file; only its header is read."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        with safe_open(path, "pt"):
            return
    except (OSError, ValueError, SafetensorError) as problem:
        raise error(f"cannot read '{path}': {problem}") from problem
