"""Everything that is measured of one model alone, on the same pictures as all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.compare.config import CompareConfig
from clearvit.compare.final import Finals, finals, readable
from clearvit.diagnose.diagnosis import DiagnoseConfig, Diagnosis, diagnose, passes_needed
from clearvit.diagnose.equivariance import VIEWS, equivariance
from clearvit.diagnose.experiments import choose, labels_of
from clearvit.errors import ImageError
from clearvit.images import Picture, Skipped, find_images, spread


@dataclass(frozen=True)
class Material:
    """The pictures of a comparison, all of them readable."""

    size: Size  # (height, width) in pixels, of the first model
    pictures: tuple[Picture, ...]
    skipped: tuple[Skipped, ...]
    held: tuple[Picture, ...]  # those of the many-view reference
    labelled: tuple[Picture, ...]  # empty without labels
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # one for each


@dataclass(frozen=True)
class Study:
    """One model on these pictures."""

    name: str
    backbone: Backbone
    diagnosis: Diagnosis | None  # None for a model without blocks to look into
    equivariance: float | None
    finals: Finals
    labelled: Tensor | None  # summaries of the labelled pictures, (I, C)


def gather(first: Backbone, images: Any, config: CompareConfig) -> Material:
    """Choose the pictures, and leave out those that cannot be read."""
    found = find_images(images)
    chosen = spread(found, config.limit)
    pictures, skipped = readable(chosen)
    if not pictures:
        raise ImageError(f"none of {len(chosen)} images could be read: {skipped[0].reason}.")
    labelled, labels, unread = _labelled(found, config)
    known = {bad.name for bad in skipped}
    return Material(
        size=first.fitting_size(config.size),
        pictures=tuple(pictures),
        skipped=(*skipped, *(bad for bad in unread if config.labels or bad.name not in known)),
        held=tuple(spread(pictures, config.reference_images)),
        labelled=tuple(labelled),
        labels=torch.tensor(labels, dtype=torch.long),
    )


def study(
    backbone: Backbone,
    name: str,
    material: Material,
    config: CompareConfig,
    advance: Callable[[int], None],
) -> Study:
    """Measure one model.

    Args:
        backbone: The model.
        name: What to call it.
        material: The pictures.
        config: How much of everything.
        advance: Told how many more forward passes are done.
    """
    size = backbone.fitting_size(material.size)
    diagnosis, moved = None, None
    if isinstance(backbone, VitBackbone):
        diagnosis = _diagnosed(backbone, material, size, config, advance)
        moved = diagnosis.equivariance
    elif config.shifted:
        shifted = spread(material.pictures, config.shifted)
        moved = equivariance(
            backbone,
            shifted,
            size=size,
            batch=config.batch,
            advance=advance,
        )
    final = partial(finals, backbone, size=size, batch=config.batch, advance=advance)
    kept = {picture.name for picture in material.held}
    labelled = None
    if material.labelled:
        labelled = final(material.labelled).summaries
    return Study(
        name=name,
        backbone=backbone,
        diagnosis=None if diagnosis is None else replace(diagnosis, model=name),
        equivariance=None if moved is None else moved.ratio,
        finals=final(material.pictures, keep=kept),
        labelled=labelled,
    )


def study_passes(backbone: Backbone, material: Material, config: CompareConfig) -> int:
    """How many images a study sends through the network, repeats counted."""
    count = len(material.pictures)
    alone = VIEWS * min(config.shifted, count)
    if isinstance(backbone, VitBackbone):
        alone = passes_needed(count, _diagnosis_config(material.size, config))
    return alone + count + len(material.labelled)


def _diagnosed(
    backbone: VitBackbone,
    material: Material,
    size: Size,
    config: CompareConfig,
    advance: Callable[[int], None],
) -> Diagnosis:
    done = 0

    def tell(now: int, _: int) -> None:
        nonlocal done
        advance(now - done)
        done = now

    options = _diagnosis_config(size, config)
    return diagnose(backbone, material.pictures, config=options, progress=tell)


def _diagnosis_config(size: Size, config: CompareConfig) -> DiagnoseConfig:
    return DiagnoseConfig(
        size=size,
        limit=config.limit,
        batch=config.batch,
        equivariance=config.shifted > 0,
        shifted=config.shifted,
        experiments=False,
        seed=config.seed,
    )


def _labelled(
    found: list[Picture], config: CompareConfig
) -> tuple[list[Picture], list[int], tuple[Skipped, ...]]:
    """Choose labelled pictures that can be read, and give their classes."""
    pictures = found if config.labels is None else find_images(config.labels)
    labels = labels_of(pictures)
    if labels is None:
        if config.labels is not None:
            raise ImageError(
                f"'{config.labels}' gives no labels; it needs one folder per class, at least two"
                " of them and two images in each: cat/1.jpg, cat/2.jpg, dog/1.jpg, dog/2.jpg."
            )
        return [], [], ()
    label_of = {picture.name: label for picture, label in zip(pictures, labels, strict=True)}
    good, skipped = readable([pictures[i] for i in choose(labels, config.labelled)])
    return (good, [label_of[p.name] for p in good], skipped) if len(good) > 1 else ([], [], skipped)
