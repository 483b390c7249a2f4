"""The same index on a Ray cluster: workers write fragments of the table, this process commits them.

A fragment that nobody committed is no part of the table, so a worker may die at any moment: its
task is run again, and only what a task returned is committed. All is one commit at the end; a build
that takes longer commits what is finished every minute, and that is what a killed build keeps.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.errors import missing_extra
from clearvit.images import ImageSource, Skipped
from clearvit.retrieval.config import IndexConfig
from clearvit.retrieval.image_features import FeatureSpec
from clearvit.retrieval.index.arrow_rows import Entry, to_arrow
from clearvit.retrieval.index.commits import hold_directory, write
from clearvit.retrieval.index.filters import quote_names
from clearvit.retrieval.index.store import Store
from clearvit.retrieval.index.update import embed_images
from clearvit.shards.ray_tasks import LoadRecipe, finished_tasks, load_once, recipe_of

PER_TASK, TASKS = 512, 16  # images of a task at most; tasks at least, so that several can help
COMMIT_SECONDS = 60.0  # between two commits


@dataclass(frozen=True)
class _Job:
    """What all tasks need; whatever decides the rows is chosen before the first of them."""

    recipe: LoadRecipe
    spec: FeatureSpec
    config: IndexConfig
    uri: str  # of the table
    storage: Mapping[str, str] | None
    file_format: str  # all fragments of a table have the same version


@dataclass
class _Written:
    """What tasks wrote and nobody committed yet; also what one task returns."""

    fragments: list[str] = field(default_factory=list)  # as JSON
    names: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def write_on_ray(
    store: Store,
    backbone: Backbone,
    images: Sequence[ImageSource],
    entries: Mapping[str, Entry],
    config: IndexConfig,
    advance: Callable[[int], None],
) -> list[Skipped]:
    """Embed images on the cluster at RAY_ADDRESS, or on a local one, and put them in the table.

    Args:
        store: The table.
        backbone: Loaded again by its name on every worker.
        images: Files, URLs, or members of tars and tables.
        entries: What is known of each image, by name.
        config: Options of the build.
        advance: Called with the number of images that a task has finished.
    """
    table = open_by_lance(store)
    job = _Job(
        recipe=recipe_of(backbone),
        spec=store.spec,
        config=config,
        uri=table.uri,
        storage=store.place[1],
        file_format=table.data_storage_version,
    )
    size = max(1, min(PER_TASK, math.ceil(len(images) / TASKS)))
    parts = [images[start : start + size] for start in range(0, len(images), size)]
    known = [{image.name: entries[image.name] for image in part} for part in parts]
    pending, skipped = _Written(), []
    last = time.monotonic()
    try:
        tasks = closing(finished_tasks(_write_fragment, job, parts, known))
        with hold_directory(store.location), tasks as finished:
            for number, result in finished:
                pending.fragments += result.fragments
                pending.names += result.names
                skipped += result.skipped
                advance(len(parts[number]))
                if time.monotonic() - last > COMMIT_SECONDS:
                    commit_fragments(store, pending.fragments, pending.names)
                    pending, last = _Written(), time.monotonic()
    finally:  # a bad file with --strict, or a cluster that is gone: the rest is kept
        commit_fragments(store, pending.fragments, pending.names)
    return skipped


def _write_fragment(job: _Job, images: Sequence[ImageSource], entries: Any) -> _Written:
    """Decode, embed and write some images, on a worker."""
    import pyarrow as pa
    from lance.fragment import write_fragments

    done, tables = _Written(), []
    for ready, features, bad in embed_images(
        load_once(job.recipe), images, entries, job.spec, job.config
    ):
        done.skipped += bad
        if features is not None:
            tables.append(to_arrow(ready, features, job.spec))
            done.names += [entry.name for entry in ready]
    if tables:
        rows = pa.concat_tables(tables)
        found = write_fragments(
            rows,
            job.uri,
            schema=rows.schema,
            mode="append",
            data_storage_version=job.file_format,
            storage_options=None if job.storage is None else dict(job.storage),
        )
        done.fragments += [json.dumps(fragment.to_json()) for fragment in found]
    return done


def commit_fragments(store: Store, fragments: Sequence[str], names: Sequence[str]) -> None:
    """Make fragments part of the table, in one commit; rows of the same names are replaced."""
    if not fragments:
        return
    from lance import FragmentMetadata, LanceDataset, LanceOperation

    new = [FragmentMetadata.from_json(text) for text in fragments]

    def commit() -> None:
        table = open_by_lance(store)
        there = set(table.to_table(columns=["name"])["name"].to_pylist())
        replaced = [name for name in names if name in there]
        operation: Any = LanceOperation.Append(new)
        if replaced:
            gone, fewer = _delete_names(table, replaced)
            operation = LanceOperation.Update(
                removed_fragment_ids=gone, updated_fragments=fewer, new_fragments=new
            )
        LanceDataset.commit(table, operation, read_version=table.version)

    write(store.location, commit)


def _delete_names(table: Any, names: Sequence[str]) -> tuple[list[int], list[Any]]:
    """Give the fragments that lose all rows of some names, and those that keep others."""
    gone, fewer = [], []
    for fragment in table.get_fragments():
        left = fragment.delete(f"name IN ({quote_names(names)})")
        if left is None:
            gone.append(fragment.fragment_id)
        elif left.deletion_file != fragment.metadata.deletion_file:
            fewer.append(left)
    return gone, fewer


def open_by_lance(store: Store) -> Any:
    """Open the newest version of the table by pylance, which knows fragments."""
    try:
        import lance
    except ImportError as error:
        raise missing_extra("pylance", "scale", "an index by --engine ray") from error
    uri, options = store.place
    return lance.dataset(uri, storage_options=None if options is None else dict(options))
