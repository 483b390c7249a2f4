"""A collection of images that can be searched by image, by text and by what is known of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import overload

import torch
from PIL import Image

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError, ModelError, StoreError, closest
from clearvit.images import Picture, find_images, read_image
from clearvit.progress import Progress
from clearvit.retrieval.describe import Recipe, describe, fingerprint_at, make_recipe
from clearvit.retrieval.filling import (
    Changes,
    Difference,
    IndexConfig,
    check_collisions,
    difference,
    fill,
    prefixed,
)
from clearvit.retrieval.hits import Hit, Hits, Query
from clearvit.retrieval.matching import Matching, Method
from clearvit.retrieval.ranking import ranked
from clearvit.retrieval.same_model import check_recipe, query_note
from clearvit.retrieval.store import Store

Place = str | Path
One = str | Path | Image.Image | Picture
Source = str | Path | Iterable[object]


class Index:
    """Descriptors and patches of images, on disk or on an object store.

    Attributes:
        store: The table.
        recipe: How it was made.
        changes: What the last `build`, `add`, `refresh` or `remove` did.
        note: What to know about the model of the queries, else empty.
    """

    def __init__(
        self,
        store: Store,
        backbone: Backbone | None,
        config: IndexConfig | None = None,
        *,
        note: str = "",
    ) -> None:
        """Wrap an open table; use `Index.build` or `Index.open`."""
        self.store = store
        self.recipe: Recipe = store.recipe
        self.config = config or IndexConfig()
        self.changes = Changes()
        self.note = note
        self._backbone = backbone

    @staticmethod
    def build(
        backbone: Backbone,
        images: Source,
        *,
        out: Place,
        config: IndexConfig | None = None,
        storage: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Index:
        """Index images, or finish what an earlier run began; finished files are not read again.

        Args:
            backbone: Makes the tokens.
            images: A folder (with all its subfolders), a file, a glob pattern, or a list of these.
            out: A directory, or the URL of an object store such as "s3://bucket/photos".
            config: Size, grid, descriptor, batch, and what to do with bad files.
            storage: Options of the object store, passed on to LanceDB.
            progress: Told how many images are done, of how many, for a progress bar.

        Returns:
            The index; `.changes` says what was done and which files were skipped.
        """
        config = config or IndexConfig()
        pictures = find_images(images)
        recipe = make_recipe(
            backbone,
            size=config.size,
            grid=config.grid,
            descriptor=config.descriptor,
            marginal=config.marginal,
        )
        if config.overwrite:
            Store.drop(out, storage)
        store = Store.create(out, recipe, storage)
        check_recipe(store, recipe)
        index = Index(store, backbone, config)
        index._fill(pictures, progress, continuing=True)
        store.tidy(keep=timedelta(0), always=True)
        index._make_approximate()
        return index

    @staticmethod
    def open(
        path: Place,
        backbone: Backbone | None = None,
        *,
        other_model: bool = False,
        storage: Mapping[str, str] | None = None,
    ) -> Index:
        """Open an index.

        Args:
            path: Where `build` wrote it.
            backbone: The model that made it, or a pruned copy of it. None loads the model by the
                name it had, when the first query comes.
            other_model: Accept a backbone with other weights, such as a cured copy. Its
                descriptors must live in the same space as those of the index; nobody can check.
            storage: Options of the object store.
        """
        store = Store.open(path, storage)
        note = "" if backbone is None else query_note(backbone, store, other_model)
        return Index(store, backbone, note=note)

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        height, width = self.recipe.grid
        return (
            f"Index('{self.store.place}', {len(self)} images, {self.recipe.model},"
            f" {height} x {width} patches each)"
        )

    @property
    def names(self) -> list[str]:
        """Names of all images, sorted."""
        return sorted(self.store.entries())

    @property
    def backbone(self) -> Backbone:
        """The model that describes queries, loaded when it is first needed."""
        if self._backbone is None:
            from clearvit.backbones.load import load

            try:
                loaded = load(self.recipe.model)
            except ModelError as error:
                raise ModelError(
                    f"the index was made by '{self.recipe.model}', which cannot be loaded by that"
                    f" name ({error}) Pass the model: Index.open(path, backbone=...)."
                ) from error
            self.note = query_note(loaded, self.store, other_model=False)
            self._backbone = loaded
        return self._backbone

    def add(self, images: Source, *, prefix: str = "", progress: Progress | None = None) -> Changes:
        """Add images; files that are there are skipped, and read again only if they changed.

        Args:
            images: As in `build`.
            prefix: Put before the names, such as "summer/", to tell folders apart.
            progress: As in `build`.
        """
        self._fill(prefixed(find_images(images), prefix), progress, continuing=False)
        self._tidy()
        return self.changes

    def refresh(self, images: Source, *, progress: Progress | None = None) -> Changes:
        """Make the index hold exactly these images, reading only new and changed files.

        A file counts as changed if its size or its time of change differs.
        """
        pictures = find_images(images)
        known = self.store.entries()
        found = difference(known, pictures)
        self._check_writable()
        changes = fill(self.store, self.backbone, found, self.config, progress)
        broken = [bad.name for bad in changes.skipped if bad.name in known]
        gone = [*found.gone, *broken]
        self.store.delete(gone)
        self.changes = replace(changes, removed=tuple(gone))
        self._tidy()
        return self.changes

    def remove(self, names: str | Sequence[str]) -> Changes:
        """Remove images by name; the files stay where they are."""
        wanted = [names] if isinstance(names, str) else list(names)
        known = self.store.entries()
        for name in wanted:
            if name not in known:
                raise StoreError(
                    f"'{name}' is not in the index; nothing was removed.{closest(name, known)}"
                )
        self.store.delete(wanted)
        self.changes = Changes(removed=tuple(wanted), unchanged=len(known) - len(set(wanted)))
        return self.changes

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self,
        query: One,
        *,
        k: int = 10,
        rerank: int = 0,
        where: str | None = None,
        method: Method | Matching = "transport",
        weight: float | None = None,
        exact: bool = False,
        backbone: Backbone | None = None,
    ) -> Hits: ...
    @overload
    def search(
        self,
        query: Sequence[One],
        *,
        k: int = 10,
        rerank: int = 0,
        where: str | None = None,
        method: Method | Matching = "transport",
        weight: float | None = None,
        exact: bool = False,
        backbone: Backbone | None = None,
    ) -> list[Hits]: ...
    def search(
        self,
        query: One | Sequence[One],
        *,
        k: int = 10,
        rerank: int = 0,
        where: str | None = None,
        method: Method | Matching = "transport",
        weight: float | None = None,
        exact: bool = False,
        backbone: Backbone | None = None,
    ) -> Hits | list[Hits]:
        """Find the images most like a query, or like each of several.

        Args:
            query: A path or a PIL image, or a list of these.
            k: How many hits; all images if there are fewer.
            rerank: How many of the nearest to compare patch by patch; 0 ranks by descriptors.
            where: SQL over name, path, folder, label, bytes, mtime, width and height, such as
                "label = 'cats' AND width > 500".
            method: "transport", "mutual", "chamfer", or a `Matching` with options.
            weight: Of structure in the score. None asks the guard once per collection, which
                keeps the ranking by descriptors unless structure helps; `hits.note` says which.
            exact: Compare with every image even where an approximate search is ready.
            backbone: A pruned copy of the model of the index, to describe the queries faster.
        """
        _check_counts(k, rerank)
        matching = method if isinstance(method, Matching) else Matching(method)
        several = not isinstance(query, (str, Path, Image.Image, Picture))
        asked: list[One] = list(query) if several else [query]  # type: ignore[arg-type, list-item]
        if not asked:
            raise ImageError("the list of queries is empty; give at least one image.")
        asking = self if backbone is None else self._asked_by(backbone)
        queries = [asking._described(one, place) for place, one in enumerate(asked)]
        found = [
            ranked(
                asking,
                one,
                k=k,
                rerank=rerank,
                where=where,
                weight=weight,
                exact=exact,
                matching=matching,
            )
            for one in queries
        ]
        return found if several else found[0]

    def search_text(
        self, text: str, *, k: int = 10, where: str | None = None, exact: bool = False
    ) -> Hits:
        """Find the images that fit a text; for indexes of CLIP-like models.

        Args:
            text: A caption, such as "a photo of a red car".
            k: How many hits.
            where: As in `search`.
            exact: As in `search`.
        """
        _check_counts(k, 0)
        if self.recipe.descriptor != "joint":
            raise ModelError(
                f"the index of '{self.recipe.model}' holds no descriptors in a space shared with"
                " texts. Build one with a CLIP-like model, such as 'openclip:ViT-B-16/openai'."
            )
        tower = self.backbone.text
        if tower is None:
            raise ModelError(f"'{self.backbone.name}' has no text tower.")
        with torch.no_grad():
            vector = tower.encode([text])[0].float().cpu()
        rows = self.store.nearest(vector, k, where=where, heavy=False, exact=exact)
        query = Query(text)
        hits = [
            Hit(place, float(value), float(value), None, 0.0, entry, query, Matching(), self)
            for place, (value, entry) in enumerate(
                zip(rows.similarity, rows.entries, strict=True), 1
            )
        ]
        return Hits(hits, query=query, note="Ranked by the similarity of text and image.")

    def explain(
        self,
        query: One,
        name: str,
        *,
        method: Method | Matching = "transport",
        backbone: Backbone | None = None,
    ) -> Hit:
        """Compare a query with one image of the index, found or not; `.explain(path)` draws it.

        Args:
            query: A path or a PIL image.
            name: Name in the index.
            method: How to compare the patches.
            backbone: As in `search`.
        """
        asking = self if backbone is None else self._asked_by(backbone)
        rows = self.store.fetch([name])
        if not rows.entries or rows.described is None:
            raise StoreError(f"'{name}' is not in the index.{closest(name, self.store.entries())}")
        asked = asking._described(query, 0)
        assert asked.described is not None
        value = float(rows.described.descriptors[0] @ asked.described.descriptors[0])
        matching = method if isinstance(method, Matching) else Matching(method)
        # Compared, but not ranked by it: a weight of 0 with a structural similarity.
        hit = Hit(1, value, value, torch.nan, 0.0, rows.entries[0], asked, matching, asking)
        return replace(hit, structural=hit.explanation().structural)

    def _asked_by(self, backbone: Backbone) -> Index:
        """Let another model describe the queries, if it may."""
        note = query_note(backbone, self.store, other_model=False)
        return Index(self.store, backbone, self.config, note=note)

    def _described(self, query: One, place: int) -> Query:
        source = query.source if isinstance(query, Picture) else query
        known = isinstance(source, (str, Path))
        name = os.fspath(source) if known else f"query {place + 1}"  # type: ignore[arg-type]
        if isinstance(query, Picture):
            name = query.name
        if known and os.path.isdir(name):
            raise ImageError(f"'{name}' is a folder; give one image, or a list of images.")
        try:
            image = read_image(source)
        except ImageError as error:
            raise ImageError(f"the query '{name}' cannot be used: {error}") from error
        backbone = self.backbone
        pixels = backbone.preprocessing(image, self.recipe.size)[None]
        pixels = pixels.to(backbone.device, backbone.dtype)
        return Query(name, describe(backbone, pixels, self.recipe), source)

    def _fill(
        self, pictures: Sequence[Picture], progress: Progress | None, *, continuing: bool
    ) -> None:
        known = self.store.entries()
        found: Difference = difference(known, pictures)
        check_collisions(known, found, continuing=continuing)
        self._check_writable()
        self.changes = fill(self.store, self.backbone, found, self.config, progress)

    def _check_writable(self) -> None:
        backbone = self.backbone
        if fingerprint_at(backbone, self.recipe.size) != self.recipe.fingerprint:
            raise StoreError(
                f"'{backbone.name}' may search this index but not write to it: it was made by"
                f" '{self.recipe.model}', and descriptors of two models must not mix."
            )

    def _tidy(self) -> None:
        self.store.tidy(keep=timedelta(hours=1))
        self._make_approximate()

    def _make_approximate(self) -> None:
        if self.store.approximate or len(self) > self.config.exact_up_to:
            self.store.make_approximate()


def _check_counts(k: int, rerank: int) -> None:
    if k < 1 or rerank < 0:
        raise StoreError(f"k is {k} and rerank {rerank}; ask for 1 hit or more, rerank 0 or more.")
