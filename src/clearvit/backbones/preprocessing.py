"""From an image to the tensor a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clearvit.options import Size
from clearvit.schema import Rule, list_of, number, one_of, table, whole

Fit = Literal["squash", "crop"]

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
RULE: Rule = table(  # of what a file may say about it
    {
        "size": list_of(whole(1, 65536), 2, 2),
        "mean": list_of(number(-10, 10), 3, 3),
        "std": list_of(number(1e-6, 10), 3, 3),
        "interpolation": one_of(*RESAMPLING),
        "fit": one_of("squash", "crop"),
    },
    optional=("interpolation", "fit"),
)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, scale to 0..1, normalize.

    `fit` says what happens to the aspect ratio: "squash" (the default) resizes the whole image,
    so nothing is cut away and the grid covers all of it;
    "crop" keeps the aspect ratio and takes the largest centered part of the wanted shape.
    """

    size: Size  # (height, width) in pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    fit: Fit = "squash"

    def __call__(self, image: Image.Image, size: Size | None = None) -> Tensor:
        """Turn an RGB image into a normalized (3, height, width) float32 tensor."""
        return self.normalize(self.resize(image, size))

    def resize(self, image: Image.Image, size: Size | None = None) -> Tensor:
        """Turn an RGB image into a (3, height, width) uint8 tensor."""
        height, width = size or self.size
        box = _centered_box(image, height / width) if self.fit == "crop" else None
        if image.size != (width, height) or box:
            image = image.resize((width, height), RESAMPLING[self.interpolation], box=box)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def normalize(self, image: Tensor) -> Tensor:
        """Scale a (3, height, width) uint8 image to 0..1, then to the mean and std of training."""
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return image.float().div_(255).sub_(mean[:, None, None]).div_(std[:, None, None])


def preprocessing_from(content: dict[str, Any]) -> Preprocessing:
    """Make it of what a JSON file holds; `RULE` says what that may be."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Preprocessing(**values)


def _centered_box(image: Image.Image, aspect: float) -> tuple[float, float, float, float]:
    """Find the largest centered box with height / width = aspect; (left, upper, right, lower)."""
    width = min(image.width, image.height / aspect)
    height = width * aspect
    left, upper = (image.width - width) / 2, (image.height - height) / 2
    return left, upper, left + width, upper + height


def round_to_patches(size: Size, patch: Size) -> Size:
    """Round (height, width) in pixels to the nearest whole number of patches, at least one."""
    height, width = (max(1, round(s / p)) * p for s, p in zip(size, patch, strict=True))
    return height, width


def as_size(size: int | Size) -> Size:
    """Read 518 as (518, 518)."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
