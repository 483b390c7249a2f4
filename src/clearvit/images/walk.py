"""The files below a folder, each folder entered once however the links run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator


def walk(folder: str) -> Iterator[str]:
    """Yield paths relative to `folder`, with "/", of all files below it that are not hidden.

    Links to folders are followed after all real folders, and a folder already seen is not entered
    again. So loops end, an image is found under its real name if it has one, and the outcome
    does not depend on the order in which the file system lists its entries.
    A folder that cannot be listed is yielded itself, so that whoever reads it reports it.

    Raises:
        OSError: The top folder itself cannot be listed.
    """
    seen: set[tuple[int, int]] = set()
    real: deque[str] = deque([""])
    links: deque[str] = deque()
    while real or links:
        prefix = real.popleft() if real else links.popleft()
        path = os.path.join(folder, prefix)
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            if not prefix:
                raise
            yield prefix.rstrip("/")
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                (links if entry.is_symlink() else real).append(f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
