"""The table of an index: LanceDB in a directory or on an object store, and nothing about images.

Every write is one commit, so a process that is killed leaves the table as it was before or after.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.errors import StoreError, missing_extra
from clearvit.files import why_not_written
from clearvit.retrieval.describe import Described, Recipe

TABLE, DECISIONS = "images", "decisions"
KEY = b"clearvit"
FILTERS = ("name", "path", "folder", "label", "bytes", "mtime", "width", "height")
HEAVY = ("patches", "weights")
FRAGMENTS = 64  # pieces of a table that may add up before they are joined
REFINED = 4  # candidates of an approximate search that are compared exactly, per hit


@dataclass(frozen=True)
class Entry:
    """What an index knows of a file."""

    name: str  # unique in the index: the path relative to the folder, with "/"
    path: str  # absolute; empty for a picture that was never a file
    folder: str  # of the name, with "/"; empty at the top
    label: str  # last part of the folder
    bytes: int
    mtime: int  # nanoseconds
    width: int  # pixels of the original
    height: int

    def same_file(self, other: Entry) -> bool:
        """Tell whether size and time of the file are those of another."""
        return (self.bytes, self.mtime) == (other.bytes, other.mtime)


@dataclass(frozen=True)
class Rows:
    """Some images of an index, with their numbers if these were asked for."""

    entries: list[Entry]
    similarity: Tensor  # (K,): cosine with what was searched for; empty if nothing was
    described: Described | None = None


class Store:
    """One table of images; `Store.create` and `Store.open` make it."""

    def __init__(self, database: Any, table: Any, recipe: Recipe, place: str) -> None:
        self._database = database
        self._table = table
        self.recipe = recipe
        self.place = place

    @staticmethod
    def create(place: str | Path, recipe: Recipe, storage: Mapping[str, str] | None) -> Store:
        """Begin an index, or open the one that is there."""
        where = os.fspath(place)
        database = _connected(where, storage)
        if _table(database, TABLE, where) is None:
            _check_empty(where)
            with _told(f"cannot write the index '{where}'"):
                database.create_table(TABLE, schema=_schema(recipe))
        return Store.open(place, storage)

    @staticmethod
    def open(place: str | Path, storage: Mapping[str, str] | None) -> Store:
        """Open an index."""
        where = os.fspath(place)
        missing = "://" not in where and not os.path.isdir(where)  # connecting would make it
        database = None if missing else _connected(where, storage)
        table = None if missing else _table(database, TABLE, where)
        if table is None:
            raise StoreError(
                f"there is no index in '{where}'. Build one: clearvit index MODEL FOLDER --out"
                f" {where}"
            )
        text = (table.schema.metadata or {}).get(KEY)
        if text is None:
            raise StoreError(f"the table in '{where}' was not made by clearvit.")
        return Store(database, table, Recipe.from_json(text.decode()), where)

    @staticmethod
    def drop(place: str | Path, storage: Mapping[str, str] | None) -> None:
        """Throw an index away, and nothing else that may be in the directory."""
        database = _connected(os.fspath(place), storage)
        with _told(f"cannot remove the index '{place}'"):
            for name in (TABLE, DECISIONS):
                if _table(database, name, os.fspath(place)) is not None:
                    database.drop_table(name)

    def __len__(self) -> int:
        with self._reading():
            return int(self._table.count_rows())

    def entries(self) -> dict[str, Entry]:
        """List all files by name."""
        with self._reading():
            rows = self._table.search().select(list(FILTERS)).to_arrow().to_pylist()
        return {row["name"]: Entry(**row) for row in rows}

    def put(self, entries: Sequence[Entry], described: Described) -> None:
        """Write images in one commit; those of the same name are replaced."""
        if not entries:
            return
        data = _as_arrow(entries, described, self.recipe)
        with _told(f"cannot write the index '{self.place}'"):
            merge = self._table.merge_insert("name").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(data)

    def delete(self, names: Sequence[str]) -> None:
        """Remove images in one commit."""
        if names:
            with _told(f"cannot write the index '{self.place}'"):
                self._table.delete(f"name IN ({_quoted(names)})")

    def nearest(
        self, query: Tensor, count: int, *, where: str | None, heavy: bool, exact: bool
    ) -> Rows:
        """Find the images whose descriptors are nearest to a unit vector (D,), best first."""
        columns = [*FILTERS, "_distance", *(("vector", *HEAVY) if heavy else ())]
        search = self._table.search(query.numpy(), vector_column_name="vector")
        search = search.distance_type("cosine").select(columns).limit(count)
        search = search.bypass_vector_index() if exact else search.refine_factor(REFINED)
        with self._reading(where):
            found = (search.where(where, prefilter=True) if where else search).to_arrow()
        return self._rows(found, heavy)

    def fetch(self, names: Sequence[str]) -> Rows:
        """Read images with their numbers, sorted by name."""
        columns = [*FILTERS, "vector", *HEAVY]
        with self._reading():
            query = self._table.search().where(f"name IN ({_quoted(names)})").select(columns)
            found = query.to_arrow().sort_by("name")
        return self._rows(found, heavy=True)

    @property
    def approximate(self) -> bool:
        """Whether an approximate search is ready."""
        with self._reading():
            return bool(list(self._table.list_indices()))

    def make_approximate(self) -> None:
        """Build the structure of an approximate search, or take new images into it."""
        from lancedb.index import HnswSq

        with _told(f"cannot write the index '{self.place}'"):
            if self.approximate:
                self._table.optimize()
            else:
                self._table.create_index("vector", config=HnswSq(distance_type="cosine"))

    def tidy(self, *, keep: timedelta, always: bool = False) -> None:
        """Join the pieces that many small writes leave, and drop versions older than `keep`."""
        pieces = self._table.stats()["fragment_stats"]["num_fragments"]
        if pieces < 2 or (pieces < FRAGMENTS and not always):
            return
        with _told(f"cannot write the index '{self.place}'"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # readers look for the newest version
            self._table.optimize(cleanup_older_than=keep)

    def recall(self, key: str) -> str | None:
        """Read what was remembered under a key."""
        table = _table(self._database, DECISIONS, self.place)
        if table is None:
            return None
        with self._reading():
            found = table.search().where(f"key = {_quoted([key])}").to_arrow().to_pylist()
        return found[0]["value"] if found else None

    def remember(self, key: str, value: str) -> None:
        """Keep a short text under a key, beside the images."""
        with _told(f"cannot write the index '{self.place}'"):
            table = _table(self._database, DECISIONS, self.place)
            if table is None:
                self._database.create_table(DECISIONS, [{"key": key, "value": value}])
            else:
                merge = table.merge_insert("key").when_matched_update_all()
                merge.when_not_matched_insert_all().execute([{"key": key, "value": value}])

    def _rows(self, found: Any, heavy: bool) -> Rows:
        light = found.select(list(FILTERS)).to_pylist()
        distance = found["_distance"].to_numpy() if "_distance" in found.column_names else ()
        similarity = 1 - torch.tensor(np.asarray(distance, dtype=np.float32))
        described = None
        if heavy:
            cells, width = self.recipe.cells, self.recipe.width
            described = Described(
                descriptors=_matrix(found["vector"], self.recipe.channels),
                patches=_matrix(found["patches"], cells * width).unflatten(1, (cells, width)),
                weights=_matrix(found["weights"], cells),
            )
        return Rows([Entry(**row) for row in light], similarity, described)

    @contextmanager
    def _reading(self, where: str | None = None) -> Iterator[None]:
        """Turn what the database says into one sentence."""
        try:
            yield
        except ValueError as error:
            if where is None:
                raise StoreError(f"cannot read the index '{self.place}': {error}") from error
            reason = str(error).removeprefix("Invalid input, ").split(". Valid fields")[0]
            raise StoreError(
                f'the filter "{where}" cannot be used: {reason.split(", /")[0]}. Write SQL over'
                f" {', '.join(FILTERS)}, such as \"label = 'cats' AND bytes > 1000\"."
            ) from error
        except (RuntimeError, OSError) as error:
            raise StoreError(
                f"cannot read the index '{self.place}': {error}. If files of it are missing, build"
                " it again with --overwrite."
            ) from error


def _connected(place: str, storage: Mapping[str, str] | None) -> Any:
    try:
        import lancedb
    except ImportError as error:
        raise missing_extra("lancedb", "search", "an index of images") from error
    try:
        # Zero: a long-lived reader sees what another process has added.
        options = None if storage is None else dict(storage)
        return lancedb.connect(
            place, storage_options=options, read_consistency_interval=timedelta(0)
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise StoreError(f"cannot open '{place}': {error}") from error


def _table(database: Any, name: str, place: str) -> Any:
    """Open a table; None if there is none, or if its very first write was cut off."""
    try:
        return database.open_table(name)
    except (ValueError, FileNotFoundError) as error:
        if "not found" in str(error):
            return None
        raise StoreError(f"cannot read the index '{place}': {error}") from error
    except (RuntimeError, OSError) as error:
        raise StoreError(f"cannot read the index '{place}': {error}") from error


def _check_empty(place: str) -> None:
    if "://" in place or not os.path.isdir(place):
        return
    others = [name for name in os.listdir(place) if not name.endswith(".lance")]
    if others:
        raise StoreError(
            f"'{place}' is not empty and holds no index of clearvit. Choose another place."
        )


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise StoreError(
            f"{what}: {why_not_written(error)}. What was written before is kept; run the same"
            " command again."
        ) from error


def _schema(recipe: Recipe) -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = {"name": text, "path": text, "folder": text, "label": text}
    fields = [pa.field(name, kinds.get(name, number)) for name in FILTERS]
    fields += [
        pa.field("vector", pa.list_(pa.float32(), recipe.channels)),
        pa.field("patches", pa.list_(pa.float16(), recipe.cells * recipe.width)),
        pa.field("weights", pa.list_(pa.float32(), recipe.cells)),
    ]
    return pa.schema(fields, metadata={KEY: recipe.to_json().encode()})


def _as_arrow(entries: Sequence[Entry], described: Described, recipe: Recipe) -> Any:
    import pyarrow as pa

    def lists(tensor: Tensor, kind: type[np.floating[Any]]) -> Any:
        values: NDArray[Any] = tensor.flatten(1).numpy().astype(kind)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])

    columns: dict[str, Any] = {f: [getattr(entry, f) for entry in entries] for f in FILTERS}
    columns["vector"] = lists(described.descriptors, np.float32)
    columns["patches"] = lists(described.patches, np.float16)
    columns["weights"] = lists(described.weights, np.float32)
    return pa.table(columns, schema=_schema(recipe))


def _matrix(column: Any, width: int) -> Tensor:
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    # A copy, since arrow's memory is read-only; torch widens halves far faster than numpy.
    return torch.from_numpy(np.array(values)).float().reshape(-1, width)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)
