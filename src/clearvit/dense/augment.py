"""Random changes of a photo and its mask, as the linear-probing recipe trains with them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.dense.patches import resized_nearest
from clearvit.dense.splits import VOID

SCALES = (0.5, 2.0)
LONGEST = 2048  # pixels of the longer side, before the scale
MOST = 0.75  # share of one class that a crop may hold
TRIES = 10

Mask = NDArray[np.int64]


def augmented(
    image: Image.Image,
    mask: Mask,
    *,
    crop: tuple[int, int],
    fill: tuple[int, int, int],
    chance: np.random.Generator,
) -> tuple[Image.Image, Mask]:
    """Resize by 0.5 to 2, crop, mirror and change the colours.

    Args:
        image: RGB.
        mask: Classes, (height, width) of the image.
        crop: (height, width) of the result; what the image does not fill is `fill` and void.
        fill: Colour of pixels outside of the image.
        chance: Source of randomness; the same state gives the same result.
    """
    scale = chance.uniform(*SCALES)
    sides = min(image.size), max(image.size)
    factor = scale * min(min(crop) / sides[0], LONGEST / sides[1])
    size = max(1, round(image.height * factor)), max(1, round(image.width * factor))
    image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    mask = np.asarray(resized_nearest(mask, size), dtype=np.int64)
    top, left = _corner(mask, crop, chance)
    image, mask = _cut(image, mask, (top, left), crop, fill)
    if chance.random() < 0.5:
        image, mask = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mask[:, ::-1]
    return recoloured(image, chance), np.ascontiguousarray(mask)


def _corner(mask: Mask, crop: tuple[int, int], chance: np.random.Generator) -> tuple[int, int]:
    """Draw a crop that one class does not fill; after ten tries take any."""
    room = [max(0, side - wanted) for side, wanted in zip(mask.shape, crop, strict=True)]
    corner = (0, 0)
    for _ in range(TRIES):
        corner = int(chance.integers(room[0] + 1)), int(chance.integers(room[1] + 1))
        part = mask[corner[0] : corner[0] + crop[0], corner[1] : corner[1] + crop[1]]
        counts = np.unique(part[part != VOID], return_counts=True)[1]
        if len(counts) > 1 and counts.max() < MOST * counts.sum():
            break
    return corner


def _cut(
    image: Image.Image,
    mask: Mask,
    corner: tuple[int, int],
    crop: tuple[int, int],
    fill: tuple[int, int, int],
) -> tuple[Image.Image, Mask]:
    top, left = corner
    bottom, right = min(top + crop[0], mask.shape[0]), min(left + crop[1], mask.shape[1])
    photo = Image.new("RGB", (crop[1], crop[0]), fill)
    photo.paste(image.crop((left, top, right, bottom)), (0, 0))
    labels = np.full(crop, VOID, dtype=np.int64)
    labels[: bottom - top, : right - left] = mask[top:bottom, left:right]
    return photo, labels


def recoloured(image: Image.Image, chance: np.random.Generator) -> Image.Image:
    """Change brightness, contrast, saturation and hue, each half of the time."""
    pixels = np.asarray(image).astype(np.float64)
    if chance.random() < 0.5:
        pixels += chance.uniform(-32, 32)
    late = chance.random() < 0.5  # contrast comes before or after the colours
    contrast = chance.uniform(0.5, 1.5) if chance.random() < 0.5 else 1.0
    if not late:
        pixels *= contrast
    pixels = _colours(pixels, chance)
    if late:
        pixels *= contrast
    return Image.fromarray(_bytes(pixels))


def _colours(pixels: NDArray[np.float64], chance: np.random.Generator) -> NDArray[np.float64]:
    saturation = chance.uniform(0.5, 1.5) if chance.random() < 0.5 else 1.0
    hue = chance.uniform(-0.1, 0.1) if chance.random() < 0.5 else 0.0  # 18 of 180 degrees
    if saturation == 1 and hue == 0:
        return pixels
    cone = np.asarray(Image.fromarray(_bytes(pixels)).convert("HSV")).astype(np.float64)
    cone[..., 0] = (cone[..., 0] + 256 * hue) % 256
    cone[..., 1] *= saturation
    return np.asarray(Image.fromarray(_bytes(cone), "HSV").convert("RGB")).astype(np.float64)


def _bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(values, 0, 255).astype(np.uint8)
