"""Where an image is, as one string: a file, a URL, a member of a tar, a row of a table.

    photos/cat.jpg                    s3://bucket/photos/cat.jpg
    shards/000.tar::cats/7.jpg        s3://bucket/000.tar::cats/7.jpg
    table.parquet::12                 data.lance::12

A string goes wherever a path goes: to other processes and machines, into an index, into messages.
"""

from __future__ import annotations

import os
import stat
import tarfile
from dataclasses import dataclass
from functools import lru_cache

from clearvit.errors import ClearvitError, ImageError
from clearvit.images.remote import is_denied, is_url, open_file, stat_url
from clearvit.images.tables import TABLES, read_row

BETWEEN = "::"  # a container and what is in it
ARCHIVE = ".tar"
CONTAINERS = (ARCHIVE, *TABLES)
MAX_BYTES = 1 << 30  # of one image in a container or a bucket


@dataclass(frozen=True)
class PlaceFacts:
    """What is known of an image before it is read."""

    bytes: int  # 0 if unknown, -1 if it is not there
    modified: int  # nanoseconds since 1970, of the container if it is in one; 0 if unknown
    tag: str = ""  # what else tells one content from another, such as the ETag of a bucket


@dataclass(frozen=True)
class Member:
    """A file inside a tar."""

    offset: int
    bytes: int


def is_container(path: str) -> bool:
    """Tell a tar or a table by its name."""
    return path.rstrip("/").lower().endswith(CONTAINERS)


def split_place(place: str) -> tuple[str, str]:
    """Split a place into a container and what is in it; the second is empty for a plain file."""
    container, between, part = place.partition(BETWEEN)
    return (container, part) if between and is_container(container) else (place, "")


def is_plain_file(place: str) -> bool:
    """Tell whether the system itself opens this place."""
    return not is_url(place) and (not split_place(place)[1] or os.path.lexists(place))


def absolute_place(place: str) -> str:
    """Make a place mean the same from any working directory."""
    if is_url(place):
        return place
    container, part = ("", "") if is_plain_file(place) else split_place(place)
    return os.path.abspath(container) + BETWEEN + part if part else os.path.abspath(place)


def read_place(place: str) -> bytes:
    """Read the file at a place that is not a plain file.

    Raises:
        ImageError: It cannot be read; the message is a reason without the place.
    """
    container, part = split_place(place)
    try:
        if not part:
            with open_file(place) as file:
                return _bounded(file.read(MAX_BYTES + 1))
        if container.rstrip("/").lower().endswith(TABLES):
            return _bounded(read_row(container, part))
        members, reason = list_tar(container, *_stamp(container))
        member = members.get(part)
        if member is None:
            raise ImageError(reason or "no such member in the tar")
        if member.bytes > MAX_BYTES:
            raise ImageError(f"too large: {member.bytes >> 20} MB")
        with open_file(container) as file:
            file.seek(member.offset)
            content = file.read(member.bytes)
    except ImageError:
        raise
    except Exception as error:  # of any file system or format
        raise ImageError(_reason(error)) from error
    if len(content) < member.bytes:
        raise ImageError("cut off: the tar ends within it")
    return content


def stat_place(place: str) -> PlaceFacts:
    """Say what is known of an image without reading it."""
    if is_plain_file(place):
        try:
            status = os.stat(place)
        except (OSError, ValueError):
            return PlaceFacts(-1, 0)
        return PlaceFacts(status.st_size, status.st_mtime_ns)
    container, part = split_place(place)
    try:
        size, modified, tag = _stamp(container)
        if not part:
            return PlaceFacts(size, modified, tag)
        if container.lower().endswith(ARCHIVE):
            found = list_tar(container, size, modified, tag)[0].get(part)
            return PlaceFacts(-1 if found is None else found.bytes, modified, f"{found} {tag}")
        return PlaceFacts(0, modified, f"{size} {tag}")
    except Exception:  # whatever it is, reading it will say
        return PlaceFacts(-1, 0)


@lru_cache(maxsize=256)
def list_tar(path: str, size: int, modified: int, tag: str) -> tuple[dict[str, Member], str]:
    """List the files of a tar by name, and why the rest of it cannot be read, else "".

    Args:
        path: A file or a URL.
        size: Its size in bytes, from `stat_container`; a changed tar is listed again.
        modified: When it was changed.
        tag: What else tells its content.
    """
    found: dict[str, Member] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for one in tar:
                if one.isreg() and one.size:
                    found[one.name] = Member(one.offset_data, one.size)
                tar.members = []  # type: ignore[attr-defined]  # kept by it, needed by nobody
            file.seek(tar.offset)
            if any(file.read(512)):  # tarfile ends in silence at a header that it cannot read
                return found, "the tar is damaged from here on"
    except tarfile.TarError as error:
        return found, f"the tar cannot be read from here on: {error}"
    except OSError as error:
        return found, _reason(error)
    return found, ""


def stat_container(path: str) -> tuple[int, int, str]:
    """Give size, time of change and tag of a container.

    Raises:
        ImageError: It is not there, or is not a file.
    """
    try:
        return _stamp(path)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{path!r} cannot be read: {_reason(error)}") from error


def _stamp(path: str) -> tuple[int, int, str]:
    if is_url(path):
        return stat_url(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):  # a Lance table: its versions tell
        inside = [entry.stat() for entry in os.scandir(os.path.join(path, "_versions"))]
        newest = max((one.st_mtime_ns for one in inside), default=status.st_mtime_ns)
        return len(inside), newest, ""
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("not a regular file")
    return status.st_size, status.st_mtime_ns, ""


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise ImageError(f"too large: more than {MAX_BYTES >> 20} MB")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, ClearvitError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if is_denied(error):
        return "no permission"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
