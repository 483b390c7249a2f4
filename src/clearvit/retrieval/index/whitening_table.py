"""Whitenings of an index, in a table beside the images, named by the hash of their bytes."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import Any

from clearvit.errors import StoreError
from clearvit.retrieval.image_features import FeatureSpec
from clearvit.retrieval.index.arrow_rows import whitening_schema
from clearvit.retrieval.index.commits import write
from clearvit.retrieval.whitening import whitenings_from_bytes, whitenings_to_bytes

WHITENINGS = "whitenings"
LARGEST = 1 << 28  # bytes that are read


def save_whitenings(database: Any, location: str, spec: FeatureSpec) -> None:
    """Write the whitenings of a spec, before the images that need them."""
    if not spec.whitening:
        return
    rows = [{"key": spec.whitening, "value": whitenings_to_bytes(dict(spec.whitenings))}]

    def save() -> None:
        table = database.create_table(WHITENINGS, schema=whitening_schema(), exist_ok=True)
        merge = table.merge_insert("key").when_not_matched_insert_all()
        merge.execute(rows)

    write(location, save)


def load_whitenings(database: Any, location: str, spec: FeatureSpec) -> FeatureSpec:
    """Read the whitenings that a spec names."""
    if not spec.whitening:
        return spec
    if not spec.whitening.isalnum():
        raise StoreError(f"the index '{location}' names its whitening wrongly.")
    content = b""
    with contextlib.suppress(ValueError, RuntimeError, OSError):
        table = database.open_table(WHITENINGS)
        found = table.search().where(f"key = '{spec.whitening}'").limit(1).to_arrow().to_pylist()
        content = found[0]["value"] if found else b""
    if len(content) > LARGEST or hashlib.sha256(content).hexdigest() != spec.whitening:
        raise StoreError(
            f"the whitening of the index '{location}' is missing or damaged; build it again with"
            " --overwrite."
        )
    whitenings = whitenings_from_bytes(content)
    columns = {"descriptor": spec.channels, "patches": spec.width}
    if any(one.matrix.shape[1] != columns.get(name) for name, one in whitenings.items()):
        raise StoreError(f"the whitening of the index '{location}' does not fit its features.")
    return replace(spec, whitenings=whitenings)


def drop_whitenings(database: Any, location: str, spec: FeatureSpec) -> None:
    """Remove the whitenings that a spec does not name; the images they belonged to are gone."""
    with contextlib.suppress(ValueError, FileNotFoundError):
        table = database.open_table(WHITENINGS)
        write(location, lambda: table.delete(f"key != '{spec.whitening}'"))
