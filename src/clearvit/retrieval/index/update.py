"""Bring an index up to date with some images: what is finished is never computed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.errors import StoreError
from clearvit.images import ImageSource, Skipped, batches
from clearvit.images.image_places import absolute_place, stat_place
from clearvit.progress import Progress
from clearvit.retrieval.config import IndexConfig
from clearvit.retrieval.image_features import (
    FeatureSpec,
    ImageFeatures,
    check_finite,
    extract_features,
)
from clearvit.retrieval.index.arrow_rows import Entry
from clearvit.retrieval.index.store import Store


@dataclass(frozen=True)
class Changes:
    """What a call did to the index, as names."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # files that were read again
    moved: tuple[str, ...] = ()  # same file, another path
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: tuple[Skipped, ...] = ()  # files that cannot be read
    refitted: bool = False  # facet and whitening were chosen anew, and all files read again


@dataclass(frozen=True)
class Difference:
    """How a list of images differs from an index."""

    new: list[ImageSource]
    changed: list[ImageSource]
    moved: list[ImageSource]
    gone: list[str]
    entries: dict[str, Entry]  # of the images


def compare_images(known: dict[str, Entry], images: Sequence[ImageSource]) -> Difference:
    """Compare images with an index by name, size and modification time of the file."""
    entries = {image.name: make_entry(image) for image in images}
    new, changed, moved = [], [], []
    for image in images:
        now, then = entries[image.name], known.get(image.name)
        if then is None:
            new.append(image)
        elif not now.path or not now.same_file(then):
            changed.append(image)
        elif now.path != then.path:
            moved.append(image)
    gone = [name for name in known if name not in entries]
    return Difference(new, changed, moved, gone, entries)


def check_collisions(known: dict[str, Entry], found: Difference, *, continuing: bool) -> None:
    """Refuse to replace an image by another one of the same name.

    Images in memory are named by their position in a list, so only whoever continues a build means
    the same image by the same name.
    """
    for image in found.changed:
        then, now = known[image.name], found.entries[image.name]
        if then.path != now.path or not (now.path or continuing):
            raise StoreError(
                f"'{image.name}' is already in the index, from {_origin(then)}, and"
                f" the one from {_origin(now)} is another. Give prefix='more/' to tell the two"
                " collections apart, or refresh to replace it."
            )


def _origin(entry: Entry) -> str:
    return f"'{entry.path}'" if entry.path else "memory"


def prefix_image_names(images: Sequence[ImageSource], prefix: str) -> list[ImageSource]:
    """Put a prefix before the name of every image, as it will stand in the index."""
    return [ImageSource(prefix + image.name, image.source) for image in images]


def make_entry(image: ImageSource) -> Entry:
    """Say what is known of an image before it is opened."""
    folder = PurePosixPath(image.name).parent.as_posix().removeprefix(".")
    path, size, time = "", 0, 0
    if isinstance(image.source, (str, Path)):
        # Surrogates of names that are not UTF-8 cannot be stored.
        place = absolute_place(os.fspath(image.source))
        path = place.encode("utf-8", "replace").decode("utf-8")
        facts = stat_place(place)  # -1 bytes: broken links are listed when they are read
        size, time = facts.bytes, facts.modified
    return Entry(image.name, path, folder, folder.rsplit("/", 1)[-1], size, time, 0, 0)


def write_images(
    store: Store,
    backbone: Backbone,
    found: Difference,
    config: IndexConfig,
    progress: Progress | None,
) -> Changes:
    """Extract and write features of what is new or changed, a few images per commit."""
    todo = [*found.new, *found.changed]
    total = len(found.entries)
    done = total - len(todo)
    if progress:
        progress("images", done, total)
    _write_paths(store, found, config)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("images", done, total)

    write_rows = _write_here
    if todo and config.engine == "ray":
        from clearvit.retrieval.index_on_ray import write_on_ray as write_rows
    skipped = write_rows(store, backbone, todo, found.entries, config, advance)
    bad_names = {one.name for one in skipped}
    return Changes(
        added=tuple(p.name for p in found.new if p.name not in bad_names),
        changed=tuple(p.name for p in found.changed if p.name not in bad_names),
        moved=tuple(p.name for p in found.moved),
        unchanged=total - len(todo) - len(found.moved),
        skipped=tuple(skipped),
    )


def _write_here(
    store: Store,
    backbone: Backbone,
    images: Sequence[ImageSource],
    entries: Mapping[str, Entry],
    config: IndexConfig,
    advance: Callable[[int], None],
) -> list[Skipped]:
    """Embed images in this process and put them in the table, a few per commit."""
    skipped: list[Skipped] = []
    for ready, features, bad in embed_images(backbone, images, entries, store.spec, config):
        if features is not None:
            store.put(ready, features)
        skipped += bad
        advance(len(ready) + len(bad))
    return skipped


def _write_paths(store: Store, found: Difference, config: IndexConfig) -> None:
    """Write new paths beside the features that are there."""
    for chunk in _chunks(found.moved, config.commit):
        rows = store.fetch([image.name for image in chunk])
        paths = [found.entries[entry.name].path for entry in rows.entries]
        entries = [replace(e, path=p) for e, p in zip(rows.entries, paths, strict=True)]
        if rows.features is not None:
            store.put(entries, rows.features)


def embed_images(
    backbone: Backbone,
    images: Sequence[ImageSource],
    entries: Mapping[str, Entry],
    spec: FeatureSpec,
    config: IndexConfig,
) -> Iterator[tuple[list[Entry], ImageFeatures | None, list[Skipped]]]:
    """Give what one write holds, again and again, while the next images are being read."""

    def prepare(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        return backbone.preprocessing(image, spec.size), image.size

    decoders = config.decoders or (1 if backbone.device.type == "cpu" else 4)
    source = batches(images, prepare, size=config.batch, threads=decoders, strict=config.strict)
    ready: list[Entry] = []
    parts: list[ImageFeatures] = []
    bad: list[Skipped] = []
    with closing(source):
        for batch in source:
            bad += batch.skipped
            if batch.items:
                pixels = torch.stack([item[0] for item in batch.items])
                part = extract_features(backbone, pixels.to(backbone.device, backbone.dtype), spec)
                check_finite(part, batch.names)
                parts.append(part)
                sizes = [item[1] for item in batch.items]
                ready += [
                    replace(entries[name], width=size[0], height=size[1])
                    for name, size in zip(batch.names, sizes, strict=True)
                ]
            if len(ready) + len(bad) >= config.commit:
                yield ready, _concatenate(parts), bad
                ready, parts, bad = [], [], []
    if ready or bad:
        yield ready, _concatenate(parts), bad


def _concatenate(parts: Sequence[ImageFeatures]) -> ImageFeatures | None:
    if not parts:
        return None
    return ImageFeatures(
        descriptors=torch.cat([part.descriptors for part in parts]),
        patches=torch.cat([part.patches for part in parts]),
        weights=torch.cat([part.weights for part in parts]),
    )


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
