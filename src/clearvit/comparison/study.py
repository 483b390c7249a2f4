"""Everything that is measured of one model alone, on the same images as all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.config import DiagnoseConfig
from clearvit.artifacts.diagnosis import Diagnosis, diagnose, passes_needed
from clearvit.artifacts.equivariance import VIEWS, measure_equivariance
from clearvit.artifacts.experiments import choose_images, labels_of
from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.comparison.config import CompareConfig
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches, find_images, spread_evenly
from clearvit.options import Size
from clearvit.timing import Pass, synchronize, time_interleaved

Advance = Callable[[int], None]  # called with the number of forward passes just done


@dataclass(frozen=True)
class EvalImages:
    """The images of a comparison, all of them readable."""

    size: Size  # (height, width) in pixels, of the first model
    images: tuple[ImageSource, ...]
    skipped: tuple[Skipped, ...]
    reference: tuple[ImageSource, ...]  # those of the many-view reference
    labeled: tuple[ImageSource, ...]  # empty without labels
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # one for each


@dataclass(frozen=True)
class FinalTokens:
    """Final tokens of one forward pass of each image, on the CPU."""

    image_features: Tensor  # (I, C): class tokens, or means of the patches without one
    patches: dict[str, Tensor]  # (N, C) by name, of the images that were asked for
    grid: tuple[int, int]


@dataclass(frozen=True)
class Study:
    """One model on these images."""

    name: str
    backbone: Backbone
    diagnosis: Diagnosis | None  # None for a model without blocks
    equivariance: float | None
    tokens: FinalTokens
    labeled: Tensor | None  # image features of the labeled images, (I, C)

    @property
    def has_class_token(self) -> bool:
        """Whether images are described by a class token."""
        return "class" in self.backbone.prefix_names


def collect_images(first: Backbone, images: Any, config: CompareConfig) -> EvalImages:
    """Choose the images, and leave out those that cannot be read."""
    found = find_images(images)
    chosen = spread_evenly(found, config.limit)
    readable, skipped = split_readable(chosen)
    if not readable:
        raise ImageError(f"none of {len(chosen)} images could be read: {skipped[0].reason}.")
    labeled, labels, unread = _collect_labeled(found, config)
    known = {bad.name for bad in skipped}
    return EvalImages(
        size=first.fitting_size(config.size),
        images=tuple(readable),
        skipped=(*skipped, *(bad for bad in unread if config.labels or bad.name not in known)),
        reference=tuple(spread_evenly(readable, config.reference_images)),
        labeled=tuple(labeled),
        labels=torch.tensor(labels, dtype=torch.long),
    )


def split_readable(
    images: Sequence[ImageSource], batch: int = 4
) -> tuple[list[ImageSource], tuple[Skipped, ...]]:
    """Separate images that can be read from those that cannot; decodes them all."""
    good: set[str] = set()
    skipped: list[Skipped] = []
    with closing(batches(images, lambda image: image.size, size=batch)) as loaded:
        for group in loaded:
            good.update(group.names)
            skipped += group.skipped
    return [image for image in images if image.name in good], tuple(skipped)


def study_model(
    backbone: Backbone, name: str, data: EvalImages, config: CompareConfig, advance: Advance
) -> Study:
    """Measure one model, under the name that the table gives it."""
    size = backbone.fitting_size(data.size)
    diagnosis, moved = None, None
    if isinstance(backbone, VitBackbone):
        diagnosis = _diagnose(backbone, data, size, config, advance)
        moved = diagnosis.equivariance
    elif config.shifted_images:
        shifted = spread_evenly(data.images, config.shifted_images)
        moved = measure_equivariance(
            backbone, shifted, size=size, batch=config.batch, advance=advance
        )
    extract = partial(extract_tokens, backbone, size=size, batch=config.batch, advance=advance)
    return Study(
        name=name,
        backbone=backbone,
        diagnosis=None if diagnosis is None else replace(diagnosis, model=name),
        equivariance=None if moved is None else moved.ratio,
        labeled=extract(data.labeled).image_features if data.labeled else None,
        tokens=extract(data.images, keep={image.name for image in data.reference}),
    )


def count_passes(backbone: Backbone, data: EvalImages, config: CompareConfig) -> int:
    """Count the images that a study sends through the network, repeats included."""
    count = len(data.images)
    alone = VIEWS * min(config.shifted_images, count)
    if isinstance(backbone, VitBackbone):
        alone = passes_needed(count, _diagnose_config(data.size, config))
    return alone + count + len(data.labeled)


def extract_tokens(
    backbone: Backbone,
    images: Sequence[ImageSource],
    *,
    size: Size,
    keep: Collection[str] = (),
    batch: int = 4,
    advance: Advance | None = None,
) -> FinalTokens:
    """Run readable images through a backbone.

    Args:
        backbone: Any.
        images: All of them readable.
        size: (height, width) in pixels.
        keep: Names of the images whose patches to keep.
        batch: Images per forward pass.
        advance: Called with the number of images just done.
    """
    features: list[Tensor] = []
    patches: dict[str, Tensor] = {}
    grid = (0, 0)
    loaded = batches(
        images, lambda image: backbone.preprocessing(image, size), size=batch, strict=True
    )
    with closing(loaded), torch.no_grad():
        for group in loaded:
            pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
            tokens = backbone.forward(pixels)
            grid = tokens.grid
            described = tokens.patches.mean(dim=1) if tokens.cls is None else tokens.cls
            features.append(described.float().cpu())
            for name, own in zip(group.names, tokens.patches, strict=True):
                if name in keep:
                    patches[name] = own.float().cpu()
            if advance:
                advance(len(group.items))
    return FinalTokens(torch.cat(features), patches, grid)


def time_models(
    backbones: Sequence[Backbone],
    pixels: Sequence[Tensor],
    *,
    rounds: int,
    advance: Callable[[], None] | None = None,
) -> list[list[float]]:
    """Time every model on its own pixels (1, 3, height, width), in milliseconds of each round."""
    passes = [_make_pass(one, image) for one, image in zip(backbones, pixels, strict=True)]
    with torch.no_grad():
        times = time_interleaved(passes, rounds=rounds, advance=advance)
    return [[1000 * seconds for seconds in own] for own in times]


def _make_pass(backbone: Backbone, pixels: Tensor) -> Pass:
    moved = pixels.to(backbone.device, backbone.dtype)

    def run() -> None:
        backbone.forward(moved)
        synchronize(backbone.device)

    return run


def _diagnose(
    backbone: VitBackbone, data: EvalImages, size: Size, config: CompareConfig, advance: Advance
) -> Diagnosis:
    done = 0

    def progress(stage: str, now: int, total: int, note: str = "") -> None:
        nonlocal done
        advance(now - done)
        done = now

    options = _diagnose_config(size, config)
    return diagnose(backbone, data.images, config=options, progress=progress)


def _diagnose_config(size: Size, config: CompareConfig) -> DiagnoseConfig:
    return DiagnoseConfig(
        size=size,
        limit=config.limit,
        batch=config.batch,
        equivariance=config.shifted_images > 0,
        shifted=config.shifted_images,
        experiments=False,
        seed=config.seed,
    )


def _collect_labeled(
    found: list[ImageSource], config: CompareConfig
) -> tuple[list[ImageSource], list[int], tuple[Skipped, ...]]:
    """Choose labeled images that can be read, and give their classes."""
    images = found if config.labels is None else find_images(config.labels)
    labels = labels_of(images)
    if labels is None:
        if config.labels is not None:
            raise ImageError(
                f"'{config.labels}' gives no labels; it needs one folder per class, at least two"
                " of them and two images in each: cat/1.jpg, cat/2.jpg, dog/1.jpg, dog/2.jpg."
            )
        return [], [], ()
    label_of = {image.name: label for image, label in zip(images, labels, strict=True)}
    good, skipped = split_readable([images[i] for i in choose_images(labels, config.labeled_limit)])
    enough = good if len(good) > 1 else []
    return enough, [label_of[image.name] for image in enough], skipped
