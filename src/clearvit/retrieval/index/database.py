"""The database that holds the tables of an index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clearvit.errors import StoreError, missing_extra
from clearvit.images.remote import is_denied

LONGEST = 300  # letters of what the database says


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
        raise StoreError(f"cannot open '{location}': {_reason(error)}") from error


def open_table(database: Any, name: str, location: str) -> Any:
    """Open a table; None if there is none, or if its very first write was cut off."""
    try:
        return database.open_table(name)
    except (ValueError, FileNotFoundError) as error:
        if "not found" in str(error):
            return None
        raise StoreError(f"cannot read the index '{location}': {_reason(error)}") from error
    except (RuntimeError, OSError) as error:
        raise StoreError(f"cannot read the index '{location}': {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Say in one line what the database says in many words."""
    if is_denied(error):
        return "the store refuses access; check the keys and what they may do with the bucket."
    return (str(error).splitlines() or [type(error).__name__])[0][:LONGEST]
