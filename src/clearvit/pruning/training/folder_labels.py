"""Labels of images, from the folders they lie in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from clearvit.errors import TrainingError
from clearvit.images import ImageSource
from clearvit.pruning.config import Labels


def read_labels(
    images: str | Path | Iterable[object],
    sources: Sequence[ImageSource],
    wanted: Labels,
    *,
    classes: int,
) -> list[int] | None:
    """Number the folder of each image as torchvision's ImageFolder does, or give None.

    Args:
        images: What the user called the images; only a folder of folders has labels.
        sources: Found in there.
        wanted: "auto" takes labels where there are as many folders as classes, "folders" insists.
        classes: Outputs of the network's classifier; 0 without one.
    """
    if wanted == "none":
        return None
    folders: list[str] = []
    if isinstance(images, (str, Path)) and os.path.isdir(images):
        folders = sorted(entry.name for entry in os.scandir(images) if entry.is_dir())
    numbers = {folder: number for number, folder in enumerate(folders)}
    found = [numbers.get(_first_folder(source.name), -1) for source in sources]
    if classes and len(folders) == classes and min(found) >= 0:
        return found
    if wanted == "auto":
        return None
    if not classes:
        raise TrainingError("the model has no classifier, so labels are of no use: labels='none'.")
    raise TrainingError(
        f"labels='folders' needs one folder for each of the {classes} classes of the model, in"
        f" their order, and all images inside them; there are {len(folders)} folders. Use"
        " labels='none' to train on the dense model's output alone."
    )


def soft_labels(numbers: Sequence[int], classes: int, smoothing: float) -> Tensor:
    """Rows (B, K) with 1 - smoothing at the label, and the rest spread over all classes."""
    rows = torch.full((len(numbers), classes), smoothing / classes)
    rows[range(len(numbers)), list(numbers)] += 1 - smoothing
    return rows


def _first_folder(name: str) -> str:
    parts = PurePosixPath(name).parts
    return parts[0] if len(parts) > 1 else ""
