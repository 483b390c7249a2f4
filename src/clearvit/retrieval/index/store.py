"""The table of an index: LanceDB in a directory or on an object store, and nothing about images.

Every write is one commit, so a process that is killed leaves the table as it was before or after.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearvit.errors import StoreError
from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures
from clearvit.retrieval.index.arrow_rows import (
    FILTERS,
    KEY,
    Entry,
    decision_schema,
    table_schema,
    to_arrow,
    to_features,
)
from clearvit.retrieval.index.commits import clean_once, write
from clearvit.retrieval.index.database import connect, open_table
from clearvit.retrieval.index.filters import first_line, quote_names, whole_filter, wrong_filter
from clearvit.retrieval.index.held_table import HeldTable, Holder
from clearvit.retrieval.index.whitening_table import (
    drop_whitenings,
    load_whitenings,
    save_whitenings,
)

TABLE, NEXT, DECISIONS = "images", "images_next", "decisions"
ATTEMPTS, PAUSE = 4, 0.05  # to read while another process tidies up; seconds
FEATURES = ("patches", "weights")
FRAGMENTS = 64  # of a table that may add up before they are merged
KEPT = timedelta(hours=1)  # how long versions stay that another process may need
SCANNED = 2048  # rows of a scan at a time
REFINED = 4  # candidates of an approximate search that are compared exactly, per hit
CONSTRUCTION = 150  # neighbors looked at while HNSW is built; the default 300 found no more
REFINED_TO_RERANK = 2  # fewer where the hits are many and patches will decide their order


@dataclass(frozen=True)
class Rows:
    """Some images of an index, with their features if these were asked for."""

    entries: list[Entry]
    similarity: Tensor  # (K,): cosine with the query; empty without a query
    features: ImageFeatures | None = None


class Store:
    """One table of images; `Store.create` and `Store.open` make it."""

    def __init__(self, database: Any, table: Any, spec: FeatureSpec, location: str) -> None:
        self._database = database
        self._table = table
        self.spec = spec
        self.location = location
        self._holder = Holder(self.place[0], spec)

    @staticmethod
    def create(
        location: str | Path,
        spec: FeatureSpec,
        storage: Mapping[str, str] | None,
        *,
        name: str = TABLE,
    ) -> Store:
        """Begin an index, or open the one that is there."""
        where = os.fspath(location)
        database = connect(where, storage)
        if open_table(database, name, where) is None:
            _check_empty(where)
            save_whitenings(database, where, spec)
            schema = table_schema(spec)
            write(where, lambda: database.create_table(name, schema=schema, exist_ok=True))
        clean_once(where)
        return Store.open(location, storage, name=name)

    @staticmethod
    def find(location: str | Path, storage: Mapping[str, str] | None) -> Store | None:
        """Open an index to write to, if there is one."""
        where = os.fspath(location)
        missing = "://" not in where and not os.path.isdir(where)
        database = None if missing else connect(where, storage)
        if database is None or open_table(database, TABLE, where) is None:
            return None
        clean_once(where)
        return Store.open(location, storage)

    @staticmethod
    def begin_again(
        location: str | Path, spec: FeatureSpec, storage: Mapping[str, str] | None
    ) -> Store | None:
        """Begin a table that will replace the index; readers see the old one until `take_place`.

        What a killed run began with the same options is continued. None if there is no index yet.
        """
        if Store.find(location, storage) is None:  # which refuses a table of others
            return None
        where = os.fspath(location)
        database = connect(where, storage)
        begun = open_table(database, NEXT, where)
        text = ((begun.schema.metadata or {}) if begun is not None else {}).get(KEY)
        if begun is not None and (text is None or FeatureSpec.from_json(text.decode()) != spec):
            write(where, lambda: database.drop_table(NEXT))
        return Store.create(location, spec, storage, name=NEXT)

    def take_place(self, storage: Mapping[str, str] | None) -> Store:
        """Put this table in the place of the index, in one commit; returns the index."""

        def replace_table() -> None:
            rows = self._table.search().to_batches()
            self._database.create_table(
                TABLE, rows, schema=table_schema(self.spec), mode="overwrite"
            )

        write(self.location, replace_table)
        drop_whitenings(self._database, self.location, self.spec)
        for name in (NEXT, DECISIONS):  # decisions were made on the old images
            if open_table(self._database, name, self.location) is not None:
                write(self.location, functools.partial(self._database.drop_table, name))
        return Store.open(self.location, storage)

    @staticmethod
    def open(
        location: str | Path, storage: Mapping[str, str] | None, *, name: str = TABLE
    ) -> Store:
        """Open an index."""
        where = os.fspath(location)
        missing = "://" not in where and not os.path.isdir(where)  # connecting would make it
        database = None if missing else connect(where, storage)
        table = None if missing else open_table(database, name, where)
        if table is None:
            raise StoreError(
                f"there is no index in '{where}'. Build one: clearvit index MODEL FOLDER --out"
                f" {where}"
            )
        text = (table.schema.metadata or {}).get(KEY)
        if text is None:
            raise StoreError(f"the table in '{where}' was not made by clearvit.")
        spec = FeatureSpec.from_json(text.decode())
        return Store(database, table, load_whitenings(database, where, spec), where)

    def check_spec(self, ours: FeatureSpec) -> None:
        """Refuse to mix models or options in one index."""
        theirs = self.spec
        fixed = ["fingerprint", "size", "grid", "descriptor"]
        if "patch_weights=" not in theirs.asked:  # made before these could be chosen
            fixed.append("patch_weights")
        if all(getattr(theirs, name) == getattr(ours, name) for name in fixed):
            if ours.asked.startswith(theirs.asked):
                return
        if theirs.fingerprint != ours.fingerprint and theirs.size == ours.size:
            same = theirs.model == ours.model
            what = f"other weights of '{ours.model}'" if same else f"'{theirs.model}'"
            reason = f"it was made by {what}" + ("" if same else f", not by '{ours.model}'")
        else:
            names = [*fixed[1:], "asked"]
            pairs = [(name, getattr(theirs, name), getattr(ours, name)) for name in names]
            shown = [(n.replace("asked", "options"), a, b) for n, a, b in pairs if a != b]
            reason = ", ".join(f"{name}: {a} before, now {b}" for name, a, b in shown)
        raise StoreError(
            f"the index '{self.location}' cannot be continued: {reason}. Choose another directory,"
            " or overwrite to start again."
        )

    @property
    def place(self) -> tuple[str, Mapping[str, str] | None]:
        """Where Lance keeps the table, for other machines too, and options of its store."""
        uri = str(self._database.uri).rstrip("/")
        return f"{uri}/{self._table.name}.lance", self._database.storage_options

    def __len__(self) -> int:
        return int(self._read(lambda: self._table.count_rows()))

    def entries(self) -> dict[str, Entry]:
        """List all files by name."""
        rows = self._read(lambda: self._table.search().select(list(FILTERS)).to_arrow().to_pylist())
        return {row["name"]: Entry(**row) for row in rows}

    def put(self, entries: Sequence[Entry], features: ImageFeatures) -> None:
        """Write images in one commit; those of the same name are replaced."""
        if not entries:
            return
        data = to_arrow(entries, features, self.spec)
        self._write(lambda: _merge(self._table, "name", data))

    def remove_doubles(self) -> None:
        """Keep one row of each name: two processes that add an image at once both insert it."""

        def read() -> Any:
            return self._table.search().select(["name"]).with_row_id(True).to_arrow().to_pylist()

        seen: set[str] = set()
        doubled = []
        for row in sorted(self._read(read), key=lambda row: int(row["_rowid"])):
            if row["name"] in seen:
                doubled.append(str(row["_rowid"]))
            seen.add(row["name"])
        if doubled:
            self._write(lambda: self._table.delete(f"_rowid IN ({', '.join(doubled)})"))

    def delete(self, names: Sequence[str]) -> None:
        """Remove images in one commit."""
        if names:
            self._write(lambda: self._table.delete(f"name IN ({quote_names(names)})"))

    def nearest(
        self, query: Tensor, count: int, *, where: str | None, with_features: bool, exact: bool
    ) -> Rows:
        """Find the images whose descriptors are nearest to a unit vector (D,), best first."""
        columns = [*FILTERS, "_distance", *(("vector", *FEATURES) if with_features else ())]

        def run() -> Any:
            search = self._table.search(query.numpy(), vector_column_name="vector")
            search = search.distance_type("cosine").select(columns).limit(count)
            refined = REFINED_TO_RERANK if with_features else REFINED
            search = search.bypass_vector_index() if exact else search.refine_factor(refined)
            if where:
                search = search.where(whole_filter(where), prefilter=True)
            return search.to_arrow()

        held = None if where else self._held()
        if held is not None:
            return self._rows(*held.nearest(query, count), with_features=with_features)
        found = self._read(run, where)
        distance = torch.from_numpy(found["_distance"].to_numpy().astype(np.float32))
        return self._rows(found, 1 - distance, with_features=with_features)

    def scan(self, columns: Sequence[str], *, where: str | None) -> Iterator[Any]:
        """Read columns of all images, some thousand rows at a time, as Arrow record batches."""
        held = None if where else self._held()
        if held is not None:
            yield from held.rows.select(list(columns)).to_batches(SCANNED)
            return

        def run() -> Any:
            search = self._table.search().select(list(columns))
            if where:
                search = search.where(whole_filter(where))
            return search.to_batches(SCANNED)

        reader = self._read(run, where)
        while (batch := self._read(lambda: next(iter(reader), None), where)) is not None:
            yield batch

    def fetch(self, names: Sequence[str]) -> Rows:
        """Read images with their features, sorted by name."""
        columns = [*FILTERS, "vector", *FEATURES]
        chosen = f"name IN ({quote_names(names)})"
        found = self._read(
            lambda: self._table.search().where(chosen).select(columns).to_arrow().sort_by("name")
        )
        return self._rows(found, torch.zeros(0), with_features=True)

    def sample(self, count: int) -> ImageFeatures:
        """Read the features of some random images, the same ones while the index stays as it is."""
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values.tolist()
        columns = ["vector", *FEATURES]
        found = self._read(lambda: self._table.take_offsets(chosen).select(columns).to_arrow())
        return to_features(found, self.spec)

    @property
    def has_ann_index(self) -> bool:
        """Whether an approximate nearest-neighbor index exists."""
        return bool(self._read(lambda: list(self._table.list_indices())))

    def build_ann_index(self) -> None:
        """Build the approximate nearest-neighbor index (HNSW), or take new images into it."""
        from lancedb.index import HnswSq

        def build() -> None:
            if self.has_ann_index:
                self._table.optimize()
            else:
                config = HnswSq(distance_type="cosine", ef_construction=CONSTRUCTION)
                self._table.create_index("vector", config=config)

        self._write(build)

    def compact(self, *, keep: timedelta, always: bool = False) -> None:
        """Merge the fragments that many small writes leave, and drop versions older than `keep`."""
        fragments = self._table.stats()["fragment_stats"]["num_fragments"]
        if fragments < 2 or (fragments < FRAGMENTS and not always):
            return
        longer = max(keep, KEPT)  # another writer may be at work on a version that is not the last

        def optimize(older: timedelta) -> None:
            self._table.optimize(cleanup_older_than=older)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # readers look for the newest version
            write(
                self.location,
                lambda: optimize(longer),
                self._table.checkout_latest,
                alone=lambda: optimize(keep),
            )

    def load_decision(self, key: str) -> str | None:
        """Read what `save_decision` wrote under a key; None if nothing."""
        table = open_table(self._database, DECISIONS, self.location)
        if table is None:
            return None
        chosen = f"key = {quote_names([key])}"
        found = self._read(lambda: table.search().where(chosen).to_arrow().to_pylist())
        return found[0]["value"] if found else None

    def save_decision(self, key: str, value: str) -> None:
        """Keep a short text under a key, beside the images."""

        def save() -> None:
            table = self._database.create_table(DECISIONS, schema=decision_schema(), exist_ok=True)
            _merge(table, "key", [{"key": key, "value": value}])

        write(self.location, save)

    def _held(self) -> HeldTable | None:
        """Give the whole table, if it is small and this is not the first search in it."""
        columns = [*FILTERS, "vector", *FEATURES]

        def read() -> Any:
            return self._table.search().select(columns).to_arrow()

        held: HeldTable | None = self._read(lambda: self._holder.find(self._table, read))
        return held

    def _rows(self, found: Any, similarity: Tensor, *, with_features: bool) -> Rows:
        light = found.select(list(FILTERS)).to_pylist()
        features = to_features(found, self.spec) if with_features else None
        return Rows([Entry(**row) for row in light], similarity, features)

    def _write(self, action: Callable[[], Any]) -> None:
        write(self.location, action, self._table.checkout_latest)

    def _read(self, action: Callable[[], Any], where: str | None = None) -> Any:
        """Read; while another process tidies up its files, try again with the newest version.

        What the database says becomes one sentence.
        """
        for attempt in range(ATTEMPTS):
            try:
                return action()
            except ValueError as error:
                if where is None:
                    raise StoreError(f"cannot read the index '{self.location}': {error}") from error
                raise wrong_filter(where, error) from error
            except (RuntimeError, OSError) as error:
                if where is not None and self._is_readable():
                    raise wrong_filter(where, error) from error
                if attempt == ATTEMPTS - 1:
                    raise StoreError(
                        f"cannot read the index '{self.location}': {first_line(error)} If another"
                        " process is writing it, try again; if files of it are missing, build it"
                        " again with --overwrite."
                    ) from error
                time.sleep(PAUSE * 2**attempt)
                with contextlib.suppress(RuntimeError, OSError, ValueError):
                    self._table.checkout_latest()

    def _is_readable(self) -> bool:
        try:
            self._table.search().select(["name"]).limit(1).to_arrow()
        except (RuntimeError, OSError, ValueError):
            return False
        return True


def _check_empty(location: str) -> None:
    if "://" in location or not os.path.isdir(location):
        return
    others = [name for name in os.listdir(location) if not name.endswith(".lance")]
    if others:
        raise StoreError(
            f"'{location}' is not empty and holds no index of clearvit. Choose another directory."
        )


def _merge(table: Any, column: str, data: Any) -> None:
    """Insert rows; those of the same value in a column are replaced."""
    merge = table.merge_insert(column).when_matched_update_all()
    merge.when_not_matched_insert_all().execute(data)
