"""Labels of pictures, from the folders they lie in, and parts of pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import torch
from PIL import Image, ImageOps
from torch import Tensor

from clearvit.errors import TrainingError
from clearvit.images import Picture
from clearvit.prune.config import Labels

SMALLEST = 0.5  # share of the area of a picture that a part of it has at least
NARROWEST = 0.75  # how much the shape of a part differs from that of its picture at most


def labels_of(
    images: str | Path | Iterable[object],
    pictures: Sequence[Picture],
    wanted: Labels,
    *,
    classes: int,
) -> list[int] | None:
    """Number the folder of each picture as torchvision's ImageFolder does, or give None.

    Args:
        images: What the user called the images; only a folder of folders has labels.
        pictures: Found in there.
        wanted: "auto" takes labels where there are as many folders as classes, "folders" insists.
        classes: Outputs of the network's classifier; 0 without one.
    """
    if wanted == "none":
        return None
    folders: list[str] = []
    if isinstance(images, (str, Path)) and os.path.isdir(images):
        folders = sorted(entry.name for entry in os.scandir(images) if entry.is_dir())
    numbers = {folder: number for number, folder in enumerate(folders)}
    found = [numbers.get(_first(picture.name), -1) for picture in pictures]
    if classes and len(folders) == classes and min(found) >= 0:
        return found
    if wanted == "auto":
        return None
    if not classes:
        raise TrainingError("the model has no classifier, so labels are of no use: labels='none'.")
    raise TrainingError(
        f"labels='folders' needs one folder for each of the {classes} classes of the model, in"
        f" their order, and all pictures inside them; there are {len(folders)} folders. Use"
        " labels='none' to learn from the dense model alone."
    )


def soft_labels(numbers: Sequence[int], classes: int, smoothing: float) -> Tensor:
    """Rows (B, K) with 1 - smoothing at the label, and the rest spread over all classes."""
    rows = torch.full((len(numbers), classes), smoothing / classes)
    rows[range(len(numbers)), list(numbers)] += 1 - smoothing
    return rows


def part_of(picture: Image.Image, chance: torch.Generator) -> Image.Image:
    """Cut out a part, at least half of the picture, in nearly its shape; mirror every second."""
    area, shape, x, y, side = torch.rand(5, generator=chance).tolist()
    area = SMALLEST + (1 - SMALLEST) * area
    shape = NARROWEST ** (2 * shape - 1)
    width, height = (min(1.0, (area * s) ** 0.5) for s in (shape, 1 / shape))
    left, top = x * (1 - width), y * (1 - height)
    box = (left, top, left + width, top + height)
    sides = (picture.width, picture.height, picture.width, picture.height)
    x0, y0, x1, y1 = (round(share * side) for share, side in zip(box, sides, strict=True))
    part = picture.crop((x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)))
    return ImageOps.mirror(part) if side < 0.5 else part


def _first(name: str) -> str:
    parts = PurePosixPath(name).parts
    return parts[0] if len(parts) > 1 else ""
