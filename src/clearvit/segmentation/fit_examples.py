"""From examples to a segmenter: features of the labelled images, then the choice, then the fit."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.splits import load_image
from clearvit.images import read_image
from clearvit.probes.features import Features
from clearvit.progress import Progress
from clearvit.segmentation.class_maps import enlarge, map_classes, sharpen
from clearvit.segmentation.config import Method, SegmentConfig
from clearvit.segmentation.labelled_examples import Examples
from clearvit.segmentation.method_choice import (
    Candidate,
    Choice,
    Floats,
    Item,
    Judge,
    choose,
    count_pixels,
    describe_items,
    group_held_out,
    mask_reader,
    methods_to_try,
    resize_evaluated,
)
from clearvit.segmentation.patch_classifiers import (
    METHODS,
    PatchClassifier,
    fit_classifier,
    mix,
)
from clearvit.segmentation.patch_sets import MaskReader, PatchSet, collect
from clearvit.segmentation.segmenter import Segmenter, fine_backbone, make_key, plain_at
from clearvit.segmentation.sparse_labels import collect_filled, is_sparse
from clearvit.shards.config import TokenConfig
from clearvit.shards.extract import save_tokens
from clearvit.views.guidance import denormalize

PARTS: tuple[Method, Method] = ("probe", "prototypes")  # of "mixed"
FINER = 2  # the scale that is tried where none is given
DECIDING = ("method", "unlabelled", "scale", "views", "refine", "size")  # options
VERSION = "4"  # of the fit; another one makes masks again


def key_of(backbone: Backbone, examples: Examples, config: SegmentConfig) -> str:
    """Hash all that decides the masks: backbone, examples, options."""
    options = repr([getattr(config, name) for name in DECIDING])
    plain = plain_at(backbone, config.size)
    return make_key(VERSION, plain.fingerprint(), examples.digest(), options)


def fit_segmenter(
    backbone: Backbone,
    examples: Examples,
    config: SegmentConfig,
    progress: Progress | None = None,
) -> Segmenter:
    """Choose a method on held-out examples and fit it to all of them."""
    plain = plain_at(backbone, config.size)
    with tempfile.TemporaryDirectory(prefix="clearvit-") as temporary:
        trial = Trial(plain, examples, config, Path(temporary), progress)
        choice = trial.choose()
        classifier = trial.fit(choice.chosen, ())
    return Segmenter(
        classes=examples.classes,
        numbers=examples.numbers,
        classifier=classifier,
        choice=choice,
        size=plain.preprocessing.size,
        views=config.views,
        model=backbone.name,
        fingerprint=plain.fingerprint(),
        key=key_of(backbone, examples, config),
    )


class Trial:
    """Fits classifiers to some examples and measures them on the others."""

    def __init__(
        self,
        backbone: Backbone,
        examples: Examples,
        config: SegmentConfig,
        folder: Path,
        progress: Progress | None,
    ) -> None:
        self.backbone, self.examples, self.config = backbone, examples, config
        self.folder, self.progress = folder, progress
        self.items = group_held_out(examples)
        self.classes = len(examples.classes)
        self._patches: dict[int, PatchSet] = {}

    def choose(self) -> Choice:
        """Decide what was left open; what was given is not measured unless there is a choice."""
        config = self.config
        methods: Sequence[Method] = methods_to_try(METHODS, self.items)
        if config.method != "auto":
            methods = (config.method,)
        finer = self.backbone.scale == 1 and min(self._grid()) > 1 and config.views is None
        scales = (1, FINER) if finer else (1,)
        if config.scale is not None:
            scales = (config.scale,)
        refines = (False, True) if config.refine == "auto" else (config.refine == "image",)
        only = Candidate(methods[0], scales[0], refines[0])
        if config.method != "auto" and len(scales) * len(refines) == 1:
            return Choice(only, (), "no held-out examples, since nothing was to choose")
        if not self._can_hold_out(scales[0]):
            return Choice(only, (), "no held-out examples, since too few pixels are labelled")
        judge = Judge(self.measure)
        chosen = choose(judge, methods, scales, refines)
        return Choice(chosen, judge.tried, describe_items(self.items))

    def _can_hold_out(self, scale: int) -> bool:
        """Tell whether every class keeps labelled patches whichever fold is held out."""
        rows = self._patch_set(scale).patches
        for fold in {item.fold for item in self.items}:
            held_out = [n for n, item in enumerate(self.items) if item.fold == fold]
            if not (rows.without(held_out).labels.sum(0) > 0).all():
                return False
        return True

    def measure(self, candidate: Candidate) -> Floats:
        """Count hits on every held-out item, (items, 3 K)."""
        rows = np.zeros((len(self.items), 3 * self.classes))
        folds = sorted({item.fold for item in self.items})
        for number, fold in enumerate(folds):
            held_out = [n for n, item in enumerate(self.items) if item.fold == fold]
            classify = self.fit(candidate, tuple(held_out))
            for n in held_out:
                rows[n] = self._count(classify, candidate, self.items[n])
            if self.progress:
                self.progress(f"examples, {candidate}", number + 1, len(folds))
        return rows

    def fit(self, candidate: Candidate, held_out: tuple[int, ...]) -> PatchClassifier:
        """Fit the method of a candidate to all items but some."""
        return self._fit(candidate.method, candidate.scale, held_out)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a trial lives as long as one fit
    def _fit(self, method: Method, scale: int, held_out: tuple[int, ...]) -> PatchClassifier:
        data = self._data(scale, held_out)
        if method == "mixed":
            probe, prototypes = (self._fit(one, scale, held_out) for one in PARTS)
            return mix(probe, prototypes, data)
        return fit_classifier(method, data)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a trial lives as long as one fit
    def _data(self, scale: int, held_out: tuple[int, ...]) -> PatchSet:
        """Give the labelled patches of all items but some; strokes are filled first."""
        if not self._sparse:
            data = self._patch_set(scale)
            return data.without(held_out) if held_out else data
        kept = [item for n, item in enumerate(self.items) if n not in held_out]
        counts = Counter(item.index for item in kept)
        readers = {
            item.index: self.examples.read if counts[item.index] == 2 else self._reader(item)
            for item in kept
        }
        return collect_filled(self._features(scale), list(readers.items()), self.classes)

    def _reader(self, item: Item) -> MaskReader:
        return mask_reader(self.examples, item)

    @functools.cached_property
    def _sparse(self) -> bool:
        return any(is_sparse(self.examples.read(index)) for index in range(len(self.examples)))

    def _count(self, classify: PatchClassifier, candidate: Candidate, item: Item) -> Floats:
        features = self._features(candidate.scale)
        maps = map_classes(classify, features.patches([item.index])[0], features.grid)
        if candidate.refine:
            maps = sharpen(maps, self._image(item.index))
        truth = resize_evaluated(self._reader(item)(item.index))
        predicted = enlarge(maps, (truth.shape[0], truth.shape[1]))
        return count_pixels(predicted, truth, self.classes)

    def _patch_set(self, scale: int) -> PatchSet:
        if scale not in self._patches:
            items = [(item.index, self._reader(item)) for item in self.items]
            self._patches[scale] = collect(self._features(scale), items, self.classes)
        return self._patches[scale]

    @functools.cache  # noqa: B019 - a trial lives as long as one fit
    def _features(self, scale: int) -> Features:
        """Compute the tokens of all examples once for each scale."""
        fine = fine_backbone(self.backbone, scale, self.config.views)
        options = TokenConfig(batch=self.config.batch, strict=True)
        out = self.folder / f"scale-{scale}"
        report = self.progress or (lambda *given: None)
        return Features(
            save_tokens(fine, self.examples.sources, out=out, config=options, progress=report)
        )

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a trial lives as long as one fit
    def _image(self, index: int) -> Tensor:
        """Read the colors of an example as the network sees them, (3, height, width)."""
        source = self.examples.sources[index].source
        image = load_image(Path(source)) if isinstance(source, (str, Path)) else read_image(source)
        with torch.no_grad():
            pixels = self.backbone.preprocessing(image)
            return denormalize(pixels[None], self.backbone.preprocessing)[0]

    def _grid(self) -> tuple[int, int]:
        return self.backbone.grid_of(self.backbone.preprocessing.size)
