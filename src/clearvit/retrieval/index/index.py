"""A collection of images that can be searched by image, by text and by file attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError, ModelError, StoreError, closest
from clearvit.images import ImageSource, find_images
from clearvit.options import with_options
from clearvit.progress import Progress
from clearvit.retrieval.config import IndexConfig, Matching, Region, SearchConfig
from clearvit.retrieval.facets.planning import asked_config, fit_spec, has_outgrown, plan_spec
from clearvit.retrieval.image_features import FeatureSpec, fingerprint_at
from clearvit.retrieval.index.hits import Hit, Hits, Query
from clearvit.retrieval.index.index_search import search_store
from clearvit.retrieval.index.query_encoding import OneImage, encode_query, open_query
from clearvit.retrieval.index.query_model import check_named, check_query_model
from clearvit.retrieval.index.store import Store
from clearvit.retrieval.index.update import (
    Changes,
    check_collisions,
    compare_images,
    prefix_image_names,
    write_images,
)
from clearvit.retrieval.regions.region_search import search_region

Images = str | Path | Iterable[object]


class Index:
    """Descriptors and patches of images, on disk or on an object store.

    Attributes:
        store: The table.
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
        device: str | torch.device | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap an open table; use `Index.build` or `Index.open`."""
        self.store = store
        self.config = config or IndexConfig()
        self.changes = Changes()
        self.note = note
        self._backbone = backbone
        self._device = device
        self._storage = storage

    @property
    def spec(self) -> FeatureSpec:
        """How the features were made; `spec.note` says what was chosen and why."""
        return self.store.spec

    @staticmethod
    @with_options(IndexConfig)
    def build(
        backbone: Backbone,
        images: Images,
        *,
        out: str | Path,
        config: IndexConfig,
        storage: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Index:
        """Index images, or finish what an earlier run began; finished files are not read again.

        Args:
            backbone: Makes the tokens.
            images: A folder (with all its subfolders), a file, a glob pattern, or a list of these.
            out: A directory, or the URL of an object store such as "s3://bucket/photos".
            config: All options at once, instead of keywords.
            storage: Options of the object store, passed on to LanceDB.
            progress: Called with the stage, the images done and all images; a bar by default.

        Returns:
            The index; `.changes` says what was done and which files were skipped.
        """
        sources = find_images(images)
        store = Store.find(out, storage)
        if store is not None and not config.overwrite:
            store.check_spec(plan_spec(backbone, config))
            index = Index(store, backbone, config, storage=storage)
            if config.refresh and has_outgrown(store.spec, len(sources)):
                index._begin_again(sources, progress)
            else:
                index._write(sources, progress, continuing=True)
                if config.refresh:
                    index._remove_gone(sources)
        else:
            spec = fit_spec(backbone, sources, config, progress)
            again = None if store is None else Store.begin_again(out, spec, storage)
            first = Store.create(out, spec, storage) if again is None else again
            index = Index(first, backbone, config, storage=storage)
            index._write(sources, progress, continuing=True)
            if again is not None:
                index._take_place(sources)
        index.store.compact(keep=timedelta(0), always=True)
        index._update_ann_index()
        return index

    @staticmethod
    def open(
        path: str | Path,
        backbone: Backbone | None = None,
        *,
        other_model: bool = False,
        device: str | torch.device | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> Index:
        """Open an index.

        Args:
            path: Where `build` wrote it.
            backbone: The model that made it, or a pruned copy of it. None loads the model by the
                name in the index when the first query comes, if timm or OpenCLIP list that name
                or it is the demo model; repositories and directories have to be passed.
            other_model: Accept a backbone with other weights, such as a cured copy. Its
                descriptors must live in the same space as those of the index; this is not checked.
            device: Device of a model that is loaded by name.
            storage: Options of the object store.
        """
        store = Store.open(path, storage)
        note = "" if backbone is None else check_query_model(backbone, store, other_model)
        return Index(store, backbone, note=note, device=device, storage=storage)

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        height, width = self.spec.grid
        return (
            f"Index('{self.store.location}', {len(self)} images, {self.spec.model},"
            f" {height} x {width} patches each)"
        )

    @property
    def names(self) -> list[str]:
        """Names of all images, sorted."""
        return sorted(self.store.entries())

    @property
    def backbone(self) -> Backbone:
        """The model of the queries, loaded when it is first needed."""
        if self._backbone is None:
            from clearvit.backbones.load import load

            check_named(self.spec.model)
            try:
                loaded = load(self.spec.model, device=self._device)
            except ModelError as error:
                raise ModelError(
                    f"the index was made by '{self.spec.model}', which cannot be loaded by that"
                    f" name ({error}) Pass the model: Index.open(path, backbone=...)."
                ) from error
            self.note = check_query_model(loaded, self.store, other_model=False)
            self._backbone = loaded
        return self._backbone

    def add(self, images: Images, *, prefix: str = "", progress: Progress | None = None) -> Changes:
        """Add images; files that are there are skipped, and read again only if they changed.

        Args:
            images: As in `build`.
            prefix: Put before the names, such as "summer/", to tell folders apart.
            progress: Called with the stage, the images done and all images.
        """
        self._write(prefix_image_names(find_images(images), prefix), progress, continuing=False)
        self._maintain()
        return self.changes

    def refresh(self, images: Images, *, progress: Progress | None = None) -> Changes:
        """Make the index hold exactly these images, reading only new and changed files.

        A file counts as changed if its size or its modification time differs. While a collection
        is small, facet and whitening are chosen anew, and all files read again, once it has
        doubled.
        """
        sources = find_images(images)
        self._check_writable()
        if has_outgrown(self.spec, len(sources)):
            self._begin_again(sources, progress)
            self._maintain()
            return self.changes
        found = compare_images(self.store.entries(), sources)
        self.changes = write_images(self.store, self.backbone, found, self.config, progress)
        self._remove_gone(sources)
        self._maintain()
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
    def search(
        self, query: OneImage, *, backbone: Backbone | None = None, **options: Any
    ) -> Hits: ...
    @overload
    def search(
        self, query: Sequence[OneImage], *, backbone: Backbone | None = None, **options: Any
    ) -> list[Hits]: ...
    @with_options(SearchConfig)
    def search(
        self,
        query: OneImage | Sequence[OneImage],
        *,
        config: SearchConfig,
        backbone: Backbone | None = None,
    ) -> Hits | list[Hits]:
        """Find the images most similar to a query, or to each of several.

        Args:
            query: A path or a PIL image, or a list of these.
            config: All options at once, instead of keywords.
            backbone: A pruned copy of the model of the index, to encode the queries faster.

        Returns:
            The hits of one query, or a list of these for a list of queries. Without a `weight` the
            gate decides once per collection whether re-ranking is used; `hits.note` says so. With a
            `region` every hit has a `box`: where that part of the query lies in it.
        """
        single = isinstance(query, (str, Path, Image.Image, ImageSource))
        asked: Sequence[OneImage] = [query] if single else query  # type: ignore[assignment, list-item]
        if not asked:
            raise ImageError("the list of queries is empty; give at least one image.")
        run = search_store if config.region is None else search_region
        queries = [
            self._encode(one, i, backbone=backbone, region=config.region)
            for i, one in enumerate(asked)
        ]
        found = [run(self.store, one, config) for one in queries]
        return found[0] if single else found

    @with_options(SearchConfig)
    def search_text(self, text: str, *, config: SearchConfig) -> Hits:
        """Find the images that fit a text; for indexes of CLIP-like models.

        Args:
            text: A caption, such as "a photo of a red car".
            config: All options at once, instead of keywords; a text has no patches to re-rank by.
        """
        if self.spec.descriptor != "joint":
            raise ModelError(
                f"the index of '{self.spec.model}' holds no descriptors in a space shared with"
                " texts. Build one with a CLIP-like model, such as 'openclip:ViT-B-16/openai'."
            )
        if config.rerank or config.region:
            raise ModelError("a text has no patches; re-ranking and regions need an image.")
        tower = self.backbone.text
        if tower is None:
            raise ModelError(f"'{self.backbone.name}' has no text tower.")
        with torch.no_grad():
            vector = tower.encode([text])[0].float().cpu()
        rows = self.store.nearest(
            vector, config.k, where=config.where, with_features=False, exact=config.exact
        )
        query, matching = Query(text), config.matching
        hits = [
            Hit(rank, float(value), float(value), None, 0.0, entry, query, matching, self.store)
            for rank, (value, entry) in enumerate(
                zip(rows.similarity, rows.entries, strict=True), 1
            )
        ]
        return Hits(hits, query=query, note="Ranked by the similarity of text and image.")

    @with_options(Matching)
    def explain(
        self, query: OneImage, name: str, *, config: Matching, backbone: Backbone | None = None
    ) -> Hit:
        """Compare a query with one image of the index, found or not; `.explain(path)` draws it.

        Args:
            query: A path or a PIL image.
            name: Name in the index.
            config: All options at once, instead of keywords.
            backbone: As in `search`.
        """
        rows = self.store.fetch([name])
        if not rows.entries or rows.features is None:
            raise StoreError(f"'{name}' is not in the index.{closest(name, self.store.entries())}")
        asked = self._encode(query, backbone=backbone)
        assert asked.features is not None
        value = float(rows.features.descriptors[0] @ asked.features.descriptors[0])
        # Compared, but not ranked by it: a weight of 0 with a patch similarity.
        hit = Hit(1, value, value, torch.nan, 0.0, rows.entries[0], asked, config, self.store)
        return replace(hit, patch_similarity=hit.explanation().patch_similarity)

    def _encode(
        self,
        query: OneImage,
        number: int = 0,
        *,
        backbone: Backbone | None,
        region: Region | None = None,
    ) -> Query:
        """Read one image and extract its features, or those of a part of it."""
        opened = open_query(query, number)  # a wrong path should not wait for a model
        asking = self.backbone if backbone is None else backbone
        note = self.note if backbone is None else check_query_model(backbone, self.store, False)
        return encode_query(opened, asking, self.spec, note=note, region=region)

    def _write(
        self, sources: Sequence[ImageSource], progress: Progress | None, *, continuing: bool
    ) -> None:
        known = self.store.entries()
        found = compare_images(known, sources)
        check_collisions(known, found, continuing=continuing)
        self._check_writable()
        self.changes = write_images(self.store, self.backbone, found, self.config, progress)
        self.store.remove_doubles()  # of another process, or of one that was killed

    def _begin_again(self, sources: Sequence[ImageSource], progress: Progress | None) -> None:
        """Choose the features anew and write all images; readers see the old ones until then."""
        config = asked_config(self.spec, self.config)
        before, old = self.store.entries(), self.store
        spec = fit_spec(self.backbone, sources, config, progress)
        again = Store.begin_again(old.location, spec, self._storage)
        assert again is not None  # the index is there
        self.store = again
        try:
            self._write(sources, progress, continuing=True)
        except BaseException:
            self.store = old
            raise
        self._take_place(sources)
        found = compare_images(before, sources)
        bad = {one.name for one in self.changes.skipped}
        self.changes = Changes(
            added=tuple(p.name for p in found.new if p.name not in bad),
            changed=tuple(p.name for p in found.changed if p.name not in bad),
            moved=tuple(p.name for p in found.moved),
            removed=tuple(name for name in before if name not in self.store.entries()),
            unchanged=len(sources) - len(found.new) - len(found.changed) - len(found.moved),
            skipped=self.changes.skipped,
            refitted=True,
        )

    def _take_place(self, sources: Sequence[ImageSource]) -> None:
        self._remove_gone(sources)
        self.store = self.store.take_place(self._storage)

    def _remove_gone(self, sources: Sequence[ImageSource]) -> None:
        """Remove images that are not listed, and those whose file has become bad."""
        kept = {source.name for source in sources} - {bad.name for bad in self.changes.skipped}
        gone = [name for name in self.store.entries() if name not in kept]
        self.store.delete(gone)
        self.changes = replace(self.changes, removed=tuple(gone))

    def _check_writable(self) -> None:
        backbone = self.backbone
        if fingerprint_at(backbone, self.spec.size) != self.spec.fingerprint:
            raise StoreError(
                f"'{backbone.name}' may search this index but not write to it: it was made by"
                f" '{self.spec.model}', and descriptors of two models must not mix."
            )

    def _maintain(self) -> None:
        self.store.compact(keep=timedelta(hours=1))
        self._update_ann_index()

    def _update_ann_index(self) -> None:
        if self.store.has_ann_index or len(self) > self.config.ann_above:
            self.store.build_ann_index()
