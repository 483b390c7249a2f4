"""The loop over a folder: tokens, classes, masks, batch by batch and image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.splits import image_size
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches, listing_of
from clearvit.options import Size
from clearvit.progress import Meter
from clearvit.segmentation.mask_results import (
    MaskFacts,
    checksum,
    is_edited,
    read_facts,
    write_mask,
)
from clearvit.segmentation.segmenter import Segmenter


@dataclass(frozen=True)
class Making:
    """One run: what makes masks, and where they go."""

    segmenter: Segmenter
    backbone: Backbone  # as `Segmenter.prepare` gives it
    paths: Mapping[str, Path]  # of the masks, by the names of the images
    batch: int
    strict: bool = False


def find_missing(
    images: Sequence[ImageSource], paths: Mapping[str, Path], key: str, *, overwrite: bool
) -> list[ImageSource]:
    """List the images whose masks are not there, or were made by another model or image.

    A mask that was edited by hand is kept, unless `overwrite` says to make every mask again.
    """
    missing = []
    for image in images:
        path = paths[image.name]
        facts = read_facts(path) if path.exists() else None
        if overwrite or not path.exists():
            missing.append(image)
        elif facts is not None and (facts.key, facts.image) != (key, listing_of([image])):
            if not is_edited(path, facts):
                missing.append(image)
    return missing


def make_masks(run: Making, images: Sequence[ImageSource], meter: Meter) -> list[Skipped]:
    """Write the masks of some images; memory depends on the batch, not on their number."""
    sources = {image.name: image for image in images}
    size, device = run.backbone.preprocessing.size, run.backbone.device

    def prepare(image: Image.Image) -> tuple[Tensor, Size]:
        return run.backbone.preprocessing(image, size), (image.height, image.width)

    threads = 1 if device.type == "cpu" else 4
    stream = batches(images, prepare, size=run.batch, threads=threads, strict=run.strict)
    skipped: list[Skipped] = []
    with closing(stream), torch.no_grad():
        for part in stream:
            skipped += part.skipped
            if part.items:
                pixels = torch.stack([item[0] for item in part.items])
                tokens = run.backbone.forward(pixels.to(device, run.backbone.dtype))
                for n, name in enumerate(part.names):
                    own = _own_size(sources[name], part.items[n][1])
                    maps = run.segmenter.map_classes(
                        tokens.patches[n], tokens.grid, pixels[n], run.backbone
                    )
                    _write(run, sources[name], maps, own)
            meter.advance(len(part.names) + len(part.skipped))
    return skipped


def _write(run: Making, image: ImageSource, maps: Tensor, size: Size) -> None:
    mask, confidence = run.segmenter.make_mask(maps, size)
    facts = MaskFacts(run.segmenter.key, listing_of([image]), confidence, checksum(mask))
    write_mask(run.paths[image.name], mask, facts)


def _own_size(image: ImageSource, decoded: Size) -> Size:
    """Read (height, width) of the file: a very large image is decoded smaller than it is."""
    if isinstance(image.source, Image.Image):
        return decoded
    try:
        return image_size(Path(image.source))
    except ImageError:
        return decoded
