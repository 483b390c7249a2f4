"""Files that are not on this machine, by fsspec: s3://, gs://, https://, hf:// and others.

Buckets of S3 and Google are read by pyarrow where fsspec has no driver for them.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

from clearvit.errors import ImageError, missing_extra

BY_ARROW = ("s3", "gs", "gcs")
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
TAGS = ("ETag", "etag", "md5Hash", "content_hash")

DENIED = re.compile(r"access.?denied|forbidden|status: 403|\b403\b", re.IGNORECASE)

_known: dict[str, tuple[int, int, str]] = {}  # of files that a listing told about


def is_url(path: str) -> bool:
    """Tell a URL from a path; "file://" is one too."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def store_of(url: str) -> str:
    """Give the scheme and the bucket or host of a URL."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.split('/')[0]}"


def open_file(path: str) -> BinaryIO:
    """Open a file of this machine or of another to read and seek in."""
    if not is_url(path):
        return open(path, "rb")
    system, inside = file_system(path)
    return system.open(inside, "rb")  # type: ignore[no-any-return]


def file_system(url: str) -> tuple[Any, str]:
    """Give the file system of fsspec for a URL, and the path within it."""
    try:
        import fsspec
    except ImportError as error:
        raise missing_extra("fsspec", "data", "images at a URL") from error
    scheme = url.partition("://")[0]
    try:
        system, inside = fsspec.core.url_to_fs(url)
    except ImportError as error:
        if scheme not in BY_ARROW:
            raise ImageError(f"{scheme}:// cannot be read here: {error}") from error
        return _arrow_system(scheme, os.environ.get("AWS_ENDPOINT_URL", "")), url.partition("://")[
            2
        ]
    except ValueError as error:
        raise ImageError(f"{url!r} cannot be read: {error}") from error
    return system, str(inside)


@lru_cache(maxsize=8)
def _arrow_system(scheme: str, endpoint: str) -> Any:
    """Open S3 or Google's store by pyarrow, with the keys and the region of the environment."""
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow import fs
    except ImportError as error:
        raise missing_extra("pyarrow", "data", f"images at {scheme}://") from error
    if scheme != "s3":
        return ArrowFSWrapper(fs.GcsFileSystem())
    protocol, _, host = endpoint.rpartition("://")
    given = {"endpoint_override": host, "scheme": protocol or "https"} if endpoint else {}
    return ArrowFSWrapper(fs.S3FileSystem(**given))


def is_denied(error: BaseException) -> bool:
    """Tell whether a store refused: not every driver raises PermissionError for that."""
    return isinstance(error, PermissionError) or bool(DENIED.search(str(error)))


def check_listing(system: Any, path: str, url: str) -> None:
    """Say why nothing was found: a walk is silent about folders that may not be listed.

    Raises:
        PermissionError: The store refused.
        FileNotFoundError: There is nothing.
    """
    try:
        system.ls(re.split(r"[*[]", path)[0].rpartition("/")[0] or path)
    except Exception as error:
        if is_denied(error):
            raise PermissionError(url) from error
    raise FileNotFoundError(url)


def find_files(url: str) -> dict[str, str]:
    """List all files below a URL, path below it -> URL; a file is itself, under its own name."""
    system, inside = file_system(url)
    root = inside.rstrip("/")
    found: dict[str, Any] = system.find(root, detail=True)
    if not found:
        check_listing(system, root, url)
    listed = {}
    for path, info in sorted(found.items()):
        name = path[len(root) :].lstrip("/") if path != root else path.rsplit("/", 1)[-1]
        full = f"{url.rstrip('/')}/{name}" if path != root else url
        listed[name] = full
        _known[full] = _facts(info)
    return listed


def match_files(url: str) -> dict[str, str]:
    """List the files that a URL with `*` or `**` matches, path behind the bucket -> URL."""
    system, inside = file_system(url)
    start = url.partition("://")[0] + "://"
    found: dict[str, Any] = system.glob(inside, detail=True)
    listed = {}
    for path, info in sorted(found.items()):
        full = path if is_url(path) else start + path.lstrip("/")
        if info.get("type") != "directory" or path.rstrip("/").endswith(".lance"):
            listed[full.partition("://")[2].partition("/")[2]] = full
            _known[full] = _facts(info)
    if not listed:
        check_listing(system, inside, url)
    return listed


def stat_url(url: str) -> tuple[int, int, str]:
    """Give size in bytes, time of change in nanoseconds and a tag of the content."""
    if url not in _known:
        system, inside = file_system(url)
        _known[url] = _facts(system.info(inside))
    return _known[url]


def _facts(info: dict[str, Any]) -> tuple[int, int, str]:
    time: Any = next((info[key] for key in TIMES if info.get(key)), 0)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.replace("Z", "+00:00"))
        except ValueError:
            time = 0
    seconds = time.timestamp() if isinstance(time, datetime) else float(time)
    tag = next((str(info[key]) for key in TAGS if info.get(key)), "")
    return int(info.get("size") or 0), int(seconds * 1e9), tag
