"""Photos to explain: who can be paired with whom, and where the objects are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearvit.dense import layouts
from clearvit.dense.splits import MaskSplit, picture_size
from clearvit.dense.voc import Annotated, is_voc, read_voc
from clearvit.errors import ImageError
from clearvit.evaluate.retrieval_layouts import LAYOUTS, read_collection, recognised
from clearvit.images import Picture, find_images

Masker = Callable[[int, Collection[int]], Tensor]
"""Photo and classes -> pixels that are objects of these, (height, width) bool."""


@dataclass(frozen=True)
class Photos:
    """Photos, the classes that each shows, and their objects if these are known."""

    kind: str  # "masks", "boxes", "classes" or "photos"
    pictures: list[Picture]
    classes: list[frozenset[int]]  # photos pair if they share one; all share one in "photos"
    masker: Masker | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    def partner(self, query: int, similarity: Tensor) -> int | None:
        """Find the most similar photo (N,) that shares a class, if there is one."""
        for other in similarity.argsort(descending=True).tolist():
            if other != query and self.classes[query] & self.classes[other]:
                return int(other)
        return None


def read_photos(root: Path, *, layout: str | None, split: str | None) -> Photos:
    """Read masks, boxes in the layout of VOC, a retrieval collection, or a folder of photos."""
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    if layout in LAYOUTS:
        return _of_collection(root, layout, split)
    masks = layout or _mask_layout(root)
    if masks is not None:
        return _of_masks(layouts.read_masks(root, split=split or "val", layout=masks))
    if is_voc(root):
        return _of_boxes(root, split or "trainval")
    loose = any(p.is_file() for p in root.iterdir() if not p.name.startswith("."))
    if recognised(root) == "folders" and loose:
        pictures = find_images(root)
        return Photos("photos", pictures, [frozenset([0])] * len(pictures))
    return _of_collection(root, None, split)


def _mask_layout(root: Path) -> str | None:
    try:
        return layouts.recognised(root)
    except ImageError:
        return None


def _of_collection(root: Path, layout: str | None, split: str | None) -> Photos:
    found = read_collection(root, layout=layout, split=split)
    groups = [frozenset([label]) for label in found.labels]
    if not found.among:  # a place is a class, shared by all who see it
        groups = [frozenset([place]) for place in range(len(found.gallery))]
        groups += [frozenset(right) for right in found.positives]
    return Photos("classes", found.pictures, groups)


def _of_masks(split: MaskSplit) -> Photos:
    background = split.classes.index("background") if "background" in split.classes else None

    def masker(index: int, classes: Collection[int]) -> Tensor:
        return torch.from_numpy(np.isin(split.read(index), list(classes)))

    seen = [{int(c) for c in np.unique(split.read(i)) if c >= 0} for i in range(len(split))]
    return Photos("masks", split.pictures, [frozenset(s - {background}) for s in seen], masker)


def _of_boxes(root: Path, split: str) -> Photos:
    images = read_voc(root, split=split).images
    names = sorted({name for image in images for name in image.classes})
    number = {name: i for i, name in enumerate(names)}

    def masker(index: int, classes: Collection[int]) -> Tensor:
        return _boxes_mask(images[index], {names[c] for c in classes})

    pictures = [Picture(image.name, image.image) for image in images]
    groups = [frozenset(number[name] for name in image.classes) for image in images]
    return Photos("boxes", pictures, groups, masker)


def _boxes_mask(image: Annotated, classes: Collection[str]) -> Tensor:
    mask = torch.zeros(picture_size(image.image), dtype=torch.bool)
    for name, (x0, y0, x1, y1) in zip(image.classes, image.boxes, strict=True):
        if name in classes:
            mask[int(y0) : int(y1), int(x0) : int(x1)] = True
    return mask
