"""Features of some images of a collection and of random crops of them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.images import ImageSource, batches
from clearvit.progress import Meter
from clearvit.retrieval.facets.facet import Facet
from clearvit.retrieval.image_features import FeatureSpec, RawFeatures, extract_raw

SIDE = (0.5, 0.85)  # of a crop, of the side of its image
COLOR = (0.7, 1.3)  # factors of brightness, contrast and saturation
CROPS = 2  # of each image


@dataclass(frozen=True)
class CroppedSample:
    """Raw features of G images, and of two crops of the first Q of them."""

    images: RawFeatures
    crops: tuple[RawFeatures, ...]  # Q images each


def random_crop(image: Image.Image, rng: random.Random) -> Image.Image:
    """Cut a part out of an image, mirror half of these parts, and change their colors."""
    side = rng.uniform(*SIDE)
    width, height = max(1, round(side * image.width)), max(1, round(side * image.height))
    left, upper = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
    part = image.crop((left, upper, left + width, upper + height))
    if rng.random() < 0.5:
        part = ImageOps.mirror(part)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        part = change(part).enhance(rng.uniform(*COLOR))
    return part


def extract_sample(
    backbone: Backbone,
    images: Sequence[ImageSource],
    spec: FeatureSpec,
    facets: Sequence[Facet],
    *,
    queries: int,
    meter: Meter,
    batch: int = 8,
) -> CroppedSample | None:
    """Extract raw features of images, and of crops of the first `queries`; bad files are left out.

    The crops of an image depend on its pixels alone, so the same files give the same sample. None
    if no image can be read.
    """

    def with_crops(image: Image.Image) -> list[Tensor]:
        rng = random.Random(zlib.crc32(image.tobytes()))
        shown = [image, *(random_crop(image, rng) for _ in range(CROPS))]
        return [backbone.preprocessing(one, spec.size) for one in shown]

    def whole(image: Image.Image) -> list[Tensor]:
        return [backbone.preprocessing(image, spec.size)]

    def run(part: Sequence[ImageSource], prepare: Callable[[Image.Image], list[Tensor]]) -> None:
        source = batches(part, prepare, size=batch, threads=1)
        with closing(source):
            for read in source:
                for number, pixels in enumerate(zip(*read.items, strict=True)):
                    stacked = torch.stack(pixels).to(backbone.device, backbone.dtype)
                    found[number] += extract_raw(
                        backbone, stacked, spec, facets, [spec.patch_weights]
                    )
                meter.advance(len(read.names))

    found: list[list[RawFeatures]] = [[] for _ in range(1 + CROPS)]
    run(images[:queries], with_crops)
    run(images[queries:], whole)
    if not found[1]:
        return None
    whole_images, *crops = (_concatenate(parts) for parts in found)
    return CroppedSample(whole_images, tuple(crops))


def _concatenate(parts: Sequence[RawFeatures]) -> RawFeatures:
    return RawFeatures(
        descriptors=torch.cat([part.descriptors for part in parts]),
        patches={facet: torch.cat([p.patches[facet] for p in parts]) for facet in parts[0].patches},
        weights=torch.cat([part.weights for part in parts]),
    )
