"""From a picture to the tensor a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Fit = Literal["squash", "crop"]
Size = tuple[int, int]

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """Resize, scale to 0..1, normalise.

    `fit` says what happens to the aspect ratio: "squash" (the default) resizes the whole picture,
    so nothing is cut away and cell (row, column) of the grid lies at that share of the picture;
    "crop" keeps the aspect ratio and takes the largest centred part of the wanted shape.
    """

    size: Size  # (height, width) in pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    fit: Fit = "squash"

    def __call__(self, image: Image.Image, size: Size | None = None) -> Tensor:
        """Turn an RGB picture into a normalised (3, height, width) float32 tensor."""
        height, width = size or self.size
        box = _centred_box(image, height / width) if self.fit == "crop" else None
        if image.size != (width, height) or box:
            image = image.resize((width, height), RESAMPLING[self.interpolation], box=box)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return pixels.sub_(mean[:, None, None]).div_(std[:, None, None])


def _centred_box(image: Image.Image, aspect: float) -> tuple[float, float, float, float]:
    """Find the largest centred box with height / width = aspect; (left, upper, right, lower)."""
    width = min(image.width, image.height / aspect)
    height = width * aspect
    left, upper = (image.width - width) / 2, (image.height - height) / 2
    return left, upper, left + width, upper + height


def fitting(size: Size, patch: Size) -> Size:
    """Round (height, width) in pixels to the nearest whole number of patches, at least one."""
    height, width = (max(1, round(s / p)) * p for s, p in zip(size, patch, strict=True))
    return height, width


def as_size(size: int | Size) -> Size:
    """Read 518 as (518, 518)."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
