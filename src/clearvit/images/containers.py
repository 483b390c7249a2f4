"""List what is in tars, tables and buckets, as names and places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from clearvit.errors import ClearvitError, ImageError
from clearvit.images.image_places import (
    ARCHIVE,
    BETWEEN,
    is_container,
    list_tar,
    stat_container,
)
from clearvit.images.remote import find_files, match_files
from clearvit.images.tables import count_rows

REST = "(unreadable)"  # what stands for the part of a container that cannot be listed
Listed = tuple[list[str], list[str]]  # names and places
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
MOST_SHARDS = 1_000_000  # that a range may stand for


def list_places(
    names: Sequence[str], files: Sequence[str], is_image: Callable[[str], bool]
) -> Listed:
    """Put what is in containers in their place; other files stay as they are.

    A container that cannot be listed is kept as one place, which is reported when it is read.

    Raises:
        ImageError: It is the only one.
    """
    found: Listed = ([], [])
    for name, file in zip(names, files, strict=True):
        if not is_container(file):
            inside = {name: file}
        else:
            inside = _inside(name, file, is_image, only=len(files) == 1)
        found[0].extend(inside)
        found[1].extend(inside.values())
    if not found[0]:
        raise ImageError(f"no images in {files[0]!r}; it holds none, or none with a known suffix")
    return found


def list_url(url: str, is_image: Callable[[str], bool]) -> Listed:
    """List the images below a URL; tars and tables if there are no images.

    Raises:
        ImageError: There is nothing, or it may not be listed.
    """
    if shards := expand_braces(url):
        return list_places([shard.partition("://")[2] for shard in shards], shards, is_image)
    if is_container(url) and not re.search(r"[*[]", url):
        return list_places([url.rstrip("/").rsplit("/", 1)[-1]], [url.rstrip("/")], is_image)
    try:
        found = match_files(url) if re.search(r"[*[]", url) else find_files(url)
    except ClearvitError:
        raise
    except FileNotFoundError as error:
        raise ImageError(f"there is nothing at {url!r}; check the bucket and the path") from error
    except PermissionError as error:
        raise ImageError(f"{url!r} may not be listed: no permission; check the keys") from error
    except Exception as error:  # of any file system
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ImageError(f"{url!r} cannot be listed: {reason}") from error
    chosen = {name: place for name, place in found.items() if is_image(name) or place == url}
    chosen = chosen or {name: _place(name, found) for name in find_containers(found)}
    if not chosen:
        raise ImageError(f"no images at {url!r}; {len(found)} other files are ignored")
    return list_places(list(chosen), list(chosen.values()), is_image)


def _place(container: str, found: dict[str, str]) -> str:
    """Give the place of a container: that of its file, or what the files of a table begin with."""
    if container in found:
        return found[container]
    name, place = next((n, p) for n, p in found.items() if n.startswith(f"{container}/"))
    return place.removesuffix(name[len(container) :])


def find_containers(names: Iterable[str]) -> list[str]:
    """Choose tars and tables among the files of a folder; a Lance table is a folder of its own.

    What `datasets` caches beside its tables is left out.
    """
    found: dict[str, None] = {}
    for name in names:
        parents = [str(parent) for parent in PurePosixPath(name).parents]
        tables = [parent for parent in parents if parent.lower().endswith(".lance")]
        if tables:
            found[tables[-1]] = None
        elif is_container(name) and not PurePosixPath(name).name.startswith("cache-"):
            found[name] = None
    return list(found)


def refuse_compressed(path: str) -> None:
    """Say what to do with a compressed tar, which cannot be read at random places."""
    if path.lower().endswith(COMPRESSED):
        raise ImageError(f"{path!r} is compressed; unpack it to a folder or a plain .tar first")


def expand_braces(path: str) -> list[str]:
    """Write out a range of shards, "train-{000..099}.tar"; empty if there is none."""
    found = re.fullmatch(r"(.*)\{(\d{1,12})\.\.(\d{1,12})\}(.*)", path)
    if not found:
        return []
    head, first, last, tail = found.groups()
    if int(last) - int(first) >= MOST_SHARDS:
        raise ImageError(f"{path!r} stands for more than {MOST_SHARDS} files")
    return [f"{head}{n:0{len(first)}d}{tail}" for n in range(int(first), int(last) + 1)]


def _inside(name: str, file: str, is_image: Callable[[str], bool], *, only: bool) -> dict[str, str]:
    """Name what is in a container -> its place."""
    place = file.rstrip("/") + BETWEEN
    try:
        if not file.lower().endswith(ARCHIVE):
            rows = count_rows(file)
            return {f"{name}/{row:08d}": f"{place}{row}" for row in range(rows)}
        members, reason = list_tar(file, *stat_container(file))
        if reason and not members:
            raise ImageError(reason)
    except Exception as error:  # of any format; a bad shard must not end the work on others
        if only:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            begin = f"{file!r} cannot be read: "
            raise ImageError(begin + said.removeprefix(begin)) from error
        return {f"{name}/{REST}": place + REST}
    found = {f"{name}/{member}": place + member for member in members if is_image(member)}
    return {**found, f"{name}/{REST}": place + REST} if reason else found
