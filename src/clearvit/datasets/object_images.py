"""Images with the classes of their objects, and object masks where masks or boxes are known."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clearvit.datasets.masks import detect_layout, read_masks
from clearvit.datasets.retrieval_layouts import LAYOUTS, detect_retrieval_layout, read_retrieval
from clearvit.datasets.splits import MaskSplit, image_size
from clearvit.datasets.voc import AnnotatedImage, has_voc_boxes, read_voc_boxes
from clearvit.errors import ImageError
from clearvit.images import ImageSource, find_images

# Index of an image and classes -> pixels that show an object of these, (height, width) bool.
ObjectMask = Callable[[int, Collection[int]], Tensor]


@dataclass(frozen=True)
class ObjectImages:
    """Images, the classes that each shows, and their objects if these are known."""

    kind: str  # "masks", "boxes", "classes" or "images"
    sources: list[ImageSource]
    classes: list[frozenset[int]]  # of each image; images of kind "images" are all of class 0
    object_mask: ObjectMask | None = None

    def __len__(self) -> int:
        return len(self.sources)


def read_object_images(root: Path, *, layout: str | None, split: str | None) -> ObjectImages:
    """Read masks, boxes of a VOC folder, a retrieval data set, or a plain folder of images.

    Args:
        root: The folder of the data set.
        layout: A layout of `read_masks` or `read_retrieval`; detected if None.
        split: Name of the split; the layout's usual test split if None.
    """
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    if layout in LAYOUTS:
        return _from_retrieval(root, layout, split)
    masks = layout or _mask_layout(root)
    if masks is not None:
        return _from_masks(read_masks(root, split=split or "val", layout=masks))
    if has_voc_boxes(root):
        return _from_boxes(root, split or "trainval")
    loose = any(p.is_file() for p in root.iterdir() if not p.name.startswith("."))
    if detect_retrieval_layout(root) == "folders" and loose:
        sources = find_images(root)
        return ObjectImages("images", sources, [frozenset([0])] * len(sources))
    return _from_retrieval(root, None, split)


def _mask_layout(root: Path) -> str | None:
    try:
        return detect_layout(root)
    except ImageError:
        return None


def _from_retrieval(root: Path, layout: str | None, split: str | None) -> ObjectImages:
    found = read_retrieval(root, layout=layout, split=split)
    classes = [frozenset([label]) for label in found.labels]
    if not found.queries_in_gallery:  # a query is of the classes of all its positives
        classes = [frozenset([index]) for index in range(len(found.gallery))]
        classes += [frozenset(positives) for positives in found.positives]
    return ObjectImages("classes", found.sources, classes)


def _from_masks(split: MaskSplit) -> ObjectImages:
    background = split.classes.index("background") if "background" in split.classes else None

    def object_mask(index: int, classes: Collection[int]) -> Tensor:
        return torch.from_numpy(np.isin(split.read(index), list(classes)))

    seen = [{int(c) for c in np.unique(split.read(i)) if c >= 0} for i in range(len(split))]
    classes = [frozenset(one - {background}) for one in seen]
    return ObjectImages("masks", split.sources, classes, object_mask)


def _from_boxes(root: Path, split: str) -> ObjectImages:
    images = read_voc_boxes(root, split=split).images
    names = sorted({name for image in images for name in image.classes})
    number = {name: i for i, name in enumerate(names)}

    def object_mask(index: int, classes: Collection[int]) -> Tensor:
        return _fill_boxes(images[index], {names[c] for c in classes})

    sources = [ImageSource(image.name, image.image) for image in images]
    classes = [frozenset(number[name] for name in image.classes) for image in images]
    return ObjectImages("boxes", sources, classes, object_mask)


def _fill_boxes(image: AnnotatedImage, classes: Collection[str]) -> Tensor:
    mask = torch.zeros(image_size(image.image), dtype=torch.bool)
    for name, (x0, y0, x1, y1) in zip(image.classes, image.boxes, strict=True):
        if name in classes:
            mask[int(y0) : int(y1), int(x0) : int(x1)] = True
    return mask
