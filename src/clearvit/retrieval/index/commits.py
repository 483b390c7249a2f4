"""Writes to the tables of an index: several processes at once, and what a killed one left.

Every write is one commit. If another process commits first, Lance refuses some of them; they are
done again on what is there then. A writer holds a shared lock on the directory while it writes, so
whoever gets the lock alone knows that temporary files in there belong to nobody.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from clearvit.errors import StoreError
from clearvit.files import PART_SECONDS, why_not_written

ATTEMPTS, PAUSE = 20, 0.05  # at one write; seconds before the second, doubled up to 32 times
CONFLICT = re.compile(r"conflict|concurrent|too many retries", re.IGNORECASE)
REMOVED = re.compile(r"not found.*_versions", re.IGNORECASE)  # what another one tidied up
FEW = 4  # attempts then, since the table may also be damaged
TEMPORARY = re.compile(r"\.tmp\w{6}|.+#\d+")  # how Lance names files that are not whole yet

T = TypeVar("T")


def write(
    location: str,
    action: Callable[[], T],
    renew: Callable[[], None] | None = None,
    *,
    alone: Callable[[], T] | None = None,
) -> T:
    """Write in one commit, again if another process committed first.

    Args:
        location: The index, a directory or a URL.
        action: Writes; called again after a conflict.
        renew: Looks for the newest version, before the action is called again.
        alone: What to do instead while nobody else is writing, and nobody will meanwhile.

    Raises:
        StoreError: It cannot be written; in one sentence why.
    """
    clean_once(location)
    for attempt in range(ATTEMPTS):
        try:
            with hold_directory(location, alone=alone is not None) as nobody_else:
                return alone() if alone is not None and nobody_else else action()
        except (RuntimeError, OSError, ValueError) as error:
            met = CONFLICT.search(str(error)) or (attempt < FEW and REMOVED.search(str(error)))
            if attempt == ATTEMPTS - 1 or not met:
                raise StoreError(
                    f"cannot write the index '{location}': {why_not_written(error)}. What was"
                    " written before is kept; run the same command again."
                ) from error
        time.sleep(PAUSE * random.uniform(0.5, 1.5) * 2 ** min(attempt, 5))
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            if renew is not None:
                renew()
    raise AssertionError("the last attempt returns or raises")


@functools.lru_cache(maxsize=1024)
def clean_once(location: str) -> None:
    """Remove what killed writers left in the tables of a directory, once per process."""
    if "://" not in location and os.path.isdir(location):
        remove_temporaries(Path(location))


def remove_temporaries(folder: Path) -> None:
    """Remove temporary files of Lance: all if nobody is writing, else those that are a day old."""
    with _descriptor(folder) as descriptor:
        alone = descriptor is not None and _try_lock(descriptor, alone=True)
        oldest = time.time() - (0.0 if alone else PART_SECONDS)
        for path in folder.glob("*.lance/**/*"):
            if TEMPORARY.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    if path.is_file() and path.stat().st_mtime <= oldest:
                        path.unlink()


@contextlib.contextmanager
def hold_directory(location: str, *, alone: bool = False) -> Iterator[bool]:
    """Hold the directory as one of several writers; a lock ends with its process.

    Yields:
        Whether there is no other one, if `alone` asks for it; never known of an object store.
    """
    if "://" in location:
        yield False
        return
    with _descriptor(Path(location)) as descriptor:
        held = alone and descriptor is not None and _try_lock(descriptor, alone=True)
        if descriptor is not None and not held:
            _try_lock(descriptor, alone=False)
        yield held


@contextlib.contextmanager
def _descriptor(folder: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # not there yet, or no directories are opened on this system
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, alone: bool) -> bool:
    """Lock a directory; False if others hold it or the disk knows no such locks."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except OSError:
        return False
    return True
