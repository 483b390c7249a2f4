"""Bring an index up to date with some images: what is finished is never computed again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.errors import StoreError
from clearvit.images import Picture, Skipped, batches
from clearvit.progress import Progress
from clearvit.retrieval.describe import (
    Described,
    Descriptor,
    Marginal,
    Recipe,
    check_finite,
    describe,
)
from clearvit.retrieval.pooling import Grid
from clearvit.retrieval.store import Entry, Store

"""Called with the number of images that are done and of all images."""


@dataclass(frozen=True)
class IndexConfig:
    """Options of `Index.build` and of `clearvit index`."""

    size: int | tuple[int, int] | None = None  # pixels; None is the backbone's own size
    grid: int | Grid = 7  # patches kept per image, at most what the backbone makes
    descriptor: Descriptor = "auto"  # joint space of CLIP-like models, else class token, else mean
    marginal: Marginal = "auto"  # class attention where there is a class token, else uniform;
    # "without_artifacts" is the same with tokens of far too great length kept out
    batch: int = 16  # images per forward pass
    commit: int = 64  # images per write; what a killed build loses at most
    decoders: int | None = None  # threads that read ahead; None: 1 beside a CPU network, else 4
    strict: bool = False  # the first bad file ends the run
    overwrite: bool = False  # throw away what another run left
    exact_up_to: int = 100_000  # images; beyond that, search is approximate


@dataclass(frozen=True)
class Changes:
    """What a call did to the index, as names."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # files that were read again
    moved: tuple[str, ...] = ()  # same file, another path
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: tuple[Skipped, ...] = ()  # files that cannot be read


@dataclass(frozen=True)
class Difference:
    """How a list of pictures differs from an index."""

    new: list[Picture]
    changed: list[Picture]
    moved: list[Picture]
    gone: list[str]
    entries: dict[str, Entry]  # of the pictures


def difference(known: dict[str, Entry], pictures: Sequence[Picture]) -> Difference:
    """Compare pictures with an index by name, size and time of the file."""
    entries = {picture.name: entry_of(picture) for picture in pictures}
    new, changed, moved = [], [], []
    for picture in pictures:
        now, then = entries[picture.name], known.get(picture.name)
        if then is None:
            new.append(picture)
        elif not now.path or not now.same_file(then):
            changed.append(picture)
        elif now.path != then.path:
            moved.append(picture)
    gone = [name for name in known if name not in entries]
    return Difference(new, changed, moved, gone, entries)


def check_collisions(known: dict[str, Entry], found: Difference, *, continuing: bool) -> None:
    """Refuse to replace a picture by another one of the same name.

    Pictures in memory are named by their place in a list, so only whoever continues a build means
    the same picture by the same name.
    """
    for picture in found.changed:
        then, now = known[picture.name], found.entries[picture.name]
        if then.path != now.path or not (now.path or continuing):
            raise StoreError(
                f"'{picture.name}' is already in the index, from {_origin(then)}, and"
                f" the one from {_origin(now)} is another. Give prefix='more/' to tell the two"
                " collections apart, or refresh to replace it."
            )


def _origin(entry: Entry) -> str:
    return f"'{entry.path}'" if entry.path else "memory"


def prefixed(pictures: Sequence[Picture], prefix: str) -> list[Picture]:
    """Put a prefix before every name."""
    return [Picture(prefix + picture.name, picture.source) for picture in pictures]


def entry_of(picture: Picture) -> Entry:
    """Say what is known of a picture before it is opened."""
    folder = PurePosixPath(picture.name).parent.as_posix().removeprefix(".")
    path, size, time = "", 0, 0
    if isinstance(picture.source, (str, Path)):
        # Surrogates of names that are not UTF-8 cannot be stored.
        path = os.path.abspath(picture.source).encode("utf-8", "replace").decode("utf-8")
        try:
            status = os.stat(picture.source)
            size, time = status.st_size, status.st_mtime_ns
        except OSError:
            size = -1  # broken links are met, and listed, when they are read
    return Entry(picture.name, path, folder, folder.rsplit("/", 1)[-1], size, time, 0, 0)


def fill(
    store: Store,
    backbone: Backbone,
    found: Difference,
    config: IndexConfig,
    progress: Progress | None,
) -> Changes:
    """Describe and write what is new or changed, a few images per commit."""
    todo = [*found.new, *found.changed]
    total = len(found.entries)
    done = total - len(todo)
    if progress:
        progress(done, total)
    _move(store, found, config)
    skipped: list[Skipped] = []
    for entries, described, bad in _commits(backbone, todo, found.entries, store.recipe, config):
        if described is not None:
            store.put(entries, described)
        skipped += bad
        done += len(entries) + len(bad)
        if progress:
            progress(done, total)
    bad_names = {one.name for one in skipped}
    return Changes(
        added=tuple(p.name for p in found.new if p.name not in bad_names),
        changed=tuple(p.name for p in found.changed if p.name not in bad_names),
        moved=tuple(p.name for p in found.moved),
        unchanged=total - len(todo) - len(found.moved),
        skipped=tuple(skipped),
    )


def _move(store: Store, found: Difference, config: IndexConfig) -> None:
    """Write new paths beside the numbers that are there."""
    for chunk in _chunks(found.moved, config.commit):
        rows = store.fetch([picture.name for picture in chunk])
        paths = [found.entries[entry.name].path for entry in rows.entries]
        entries = [replace(e, path=p) for e, p in zip(rows.entries, paths, strict=True)]
        if rows.described is not None:
            store.put(entries, rows.described)


def _commits(
    backbone: Backbone,
    pictures: Sequence[Picture],
    entries: dict[str, Entry],
    recipe: Recipe,
    config: IndexConfig,
) -> Iterator[tuple[list[Entry], Described | None, list[Skipped]]]:
    """Give what one write holds, again and again, while the next images are being read."""
    if config.batch < 1 or config.commit < 1:
        raise StoreError("batch and commit must be at least 1.")

    def prepare(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        return backbone.preprocessing(image, recipe.size), image.size

    decoders = config.decoders or (1 if backbone.device.type == "cpu" else 4)
    source = batches(pictures, prepare, size=config.batch, threads=decoders, strict=config.strict)
    ready: list[Entry] = []
    parts: list[Described] = []
    bad: list[Skipped] = []
    with closing(source):
        for batch in source:
            bad += batch.skipped
            if batch.items:
                pixels = torch.stack([item[0] for item in batch.items])
                part = describe(backbone, pixels.to(backbone.device, backbone.dtype), recipe)
                check_finite(part, batch.names)
                parts.append(part)
                sizes = [item[1] for item in batch.items]
                ready += [
                    replace(entries[name], width=size[0], height=size[1])
                    for name, size in zip(batch.names, sizes, strict=True)
                ]
            if len(ready) + len(bad) >= config.commit:
                yield ready, _joined(parts), bad
                ready, parts, bad = [], [], []
    if ready or bad:
        yield ready, _joined(parts), bad


def _joined(parts: Sequence[Described]) -> Described | None:
    if not parts:
        return None
    return Described(
        descriptors=torch.cat([part.descriptors for part in parts]),
        patches=torch.cat([part.patches for part in parts]),
        weights=torch.cat([part.weights for part in parts]),
    )


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
