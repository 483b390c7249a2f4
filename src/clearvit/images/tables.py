"""Images in the rows of a table: Parquet, Arrow files (Hugging Face datasets) and Lance."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from functools import lru_cache
from typing import Any

from clearvit.errors import ImageError, missing_extra
from clearvit.images.remote import is_url, open_file, stat_url

TABLES = (".parquet", ".arrow", ".lance")
_READING = threading.Lock()  # several threads decode, and a table has one position in its file
NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "bytes", "content")


def count_rows(path: str) -> int:
    """Count the rows of a table.

    Raises:
        ImageError: It has no column of images.
    """
    return int(_open(path, _version(path)).rows)


def read_row(path: str, row: str) -> bytes:
    """Read the image of a row, counted from 0."""
    table = _open(path, _version(path))
    number = int(row) if row.isdecimal() else -1
    if not 0 <= number < table.rows:
        raise ImageError(f"no row {row} in the table")
    with _READING:
        value = table.value(number)
    if isinstance(value, dict):  # how Hugging Face keeps images
        if value.get("path") and not value.get("bytes"):
            raise ImageError("the row holds the path of an image, not its bytes")
        value = value.get("bytes")
    if not value:
        raise ImageError("the row holds no image")
    return bytes(value)


class _Parquet:
    """Rows in groups; the groups read last are kept."""

    def __init__(self, path: str) -> None:
        pq = _pyarrow("parquet")
        self.file = pq.ParquetFile(open_file(path))
        self.column = choose_column(self.file.schema_arrow)
        self.rows = int(self.file.metadata.num_rows)
        self.starts = [0]
        for group in range(self.file.num_row_groups):
            self.starts.append(self.starts[-1] + self.file.metadata.row_group(group).num_rows)
        self.group = lru_cache(maxsize=2)(self._group)

    def _group(self, number: int) -> Any:
        return self.file.read_row_group(number, columns=[self.column]).column(0)

    def value(self, row: int) -> Any:
        group = bisect_right(self.starts, row) - 1
        return self.group(group)[row - self.starts[group]].as_py()


class _Arrow:
    """An Arrow file, mapped into memory where it is on this machine."""

    def __init__(self, path: str) -> None:
        pa, ipc = _pyarrow(""), _pyarrow("ipc")
        source = pa.PythonFile(open_file(path)) if is_url(path) else pa.memory_map(path)
        try:
            table = ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = ipc.open_file(source).read_all()
        self.images = table.column(choose_column(table.schema))
        self.rows = table.num_rows

    def value(self, row: int) -> Any:
        return self.images[row].as_py()


class _Lance:
    """A Lance table."""

    def __init__(self, path: str) -> None:
        try:
            import lancedb
        except ImportError as error:
            raise missing_extra("lancedb", "search", "tables of Lance") from error
        parent, _, name = path.rstrip("/").removesuffix(".lance").rpartition("/")
        self.table = lancedb.connect(parent or ".").open_table(name)
        self.column = choose_column(self.table.schema)
        self.rows = self.table.count_rows()

    def value(self, row: int) -> Any:
        found = self.table.take_offsets([row]).select([self.column]).to_arrow()
        return found.column(self.column)[0].as_py()


KINDS: dict[str, Any] = dict(zip(TABLES, (_Parquet, _Arrow, _Lance), strict=True))


@lru_cache(maxsize=16)
def _open(path: str, version: object) -> Any:
    """Open a table; a changed one is opened again."""
    return KINDS[os.path.splitext(path.rstrip("/"))[1].lower()](path)


def _version(path: str) -> object:
    if is_url(path):
        return path if path.rstrip("/").endswith(".lance") else stat_url(path)
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def choose_column(schema: Any) -> str:
    """Find the column that holds encoded images: by type, then by name.

    Raises:
        ImageError: There is none.
    """
    types = _pyarrow("types")

    def holds_bytes(kind: Any) -> bool:
        if types.is_struct(kind):
            return any(field.name == "bytes" and holds_bytes(field.type) for field in kind)
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    found = [field.name for field in schema if holds_bytes(field.type)]
    if not found:
        raise ImageError(
            f"no column of encoded images among {', '.join(schema.names) or 'none'}; it must hold"
            " the bytes of image files"
        )
    named: list[str] = [name for name in found if name.lower() in NAMES]
    return (named or found)[0]


def _pyarrow(part: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ImportError as error:
        raise missing_extra("pyarrow", "data", "tables of images") from error
