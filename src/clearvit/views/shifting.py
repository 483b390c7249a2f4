"""Shift and mirror images, and the features that belong to them."""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.backbones.preprocessing import Preprocessing


def apply_view(pixels: Tensor, offset: tuple[int, int], flip: bool, fill: Tensor) -> Tensor:
    """Shift pixels (B, 3, height, width), mirror them, and fill what is uncovered.

    Args:
        pixels: Normalized images.
        offset: (dy, dx) in pixels; `view[y - dy, x - dx] = image[y, x]`.
        flip: Mirror left to right, after the shift.
        fill: Normalized color of uncovered pixels, (3,).
    """
    dy, dx = offset
    height, width = pixels.shape[2:]
    view = fill.to(pixels).reshape(1, -1, 1, 1).expand_as(pixels).clone()
    rows, columns = _seen(dy, height), _seen(dx, width)
    view[:, :, _moved(rows, dy), _moved(columns, dx)] = pixels[:, :, rows, columns]
    return view.flip(3) if flip else view


def shift_targets(features: Tensor, offset: tuple[int, int], flip: bool) -> tuple[Tensor, Tensor]:
    """Move the features of an image as a view by whole patches moves its content.

    Args:
        features: Of the image, (H, W, C).
        offset: (dy, dx) in patches.
        flip: Whether the view is mirrored.

    Returns:
        Features at their positions in the view (H, W, C), zero where it shows nothing of the image,
        and which positions show something, (H, W) bool.
    """
    rows, columns = (_seen(d, n) for d, n in zip(offset, features.shape[:2], strict=True))
    target = (_moved(rows, offset[0]), _moved(columns, offset[1]))
    moved = torch.zeros_like(features)
    shown = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
    moved[target], shown[target] = features[rows, columns], True
    return (moved.flip(1), shown.flip(1)) if flip else (moved, shown)


def white_of(preprocessing: Preprocessing) -> Tensor:
    """White as the network sees it, (3,)."""
    return (1 - torch.tensor(preprocessing.mean)) / torch.tensor(preprocessing.std)


def _seen(shift: int, length: int) -> slice:
    """Positions of the image that a shift leaves in view."""
    return slice(min(max(0, shift), length), max(min(length, length + shift), 0))


def _moved(positions: slice, shift: int) -> slice:
    return slice(positions.start - shift, positions.stop - shift)
