"""The database that holds the tables of an index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clearvit.errors import StoreError, missing_extra


def connect(location: str, storage: Mapping[str, str] | None) -> Any:
    """Open the database of an index, in a directory or on an object store."""
    try:
        import lancedb
    except ImportError as error:
        raise missing_extra("lancedb", "search", "an index of images") from error
    if not location.isprintable():
        raise StoreError(
            f"{location!r} has a line break or another control character in its name, where an"
            " index cannot lie. Choose another directory."
        )
    try:
        # Zero: a long-lived reader sees what another process has added.
        options = None if storage is None else dict(storage)
        return lancedb.connect(
            location, storage_options=options, read_consistency_interval=timedelta(0)
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise StoreError(f"cannot open '{location}': {error}") from error


def open_table(database: Any, name: str, location: str) -> Any:
    """Open a table; None if there is none, or if its very first write was cut off."""
    try:
        return database.open_table(name)
    except (ValueError, FileNotFoundError) as error:
        if "not found" in str(error):
            return None
        raise StoreError(f"cannot read the index '{location}': {error}") from error
    except (RuntimeError, OSError) as error:
        raise StoreError(f"cannot read the index '{location}': {error}") from error
