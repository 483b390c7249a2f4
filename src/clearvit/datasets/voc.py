"""The boxes of a PASCAL VOC folder: JPEGImages, Annotations/*.xml, ImageSets/Main/*.txt."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clearvit.datasets.splits import read_names
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class AnnotatedImage:
    """One image with its ground-truth boxes."""

    name: str
    image: Path
    boxes: NDArray[np.float64]  # (M, 4): x0, y0, x1, y1 in pixels from 0, ends exclusive
    classes: tuple[str, ...]  # M names


@dataclass(frozen=True)
class VocBoxes:
    """The annotated images of a split, and those that cannot be used."""

    images: tuple[AnnotatedImage, ...]
    skipped: tuple[Skipped, ...]

    @property
    def sources(self) -> list[ImageSource]:
        """The images as all verbs take them."""
        return [ImageSource(image.name, image.image) for image in self.images]


def has_voc_boxes(folder: str | Path) -> bool:
    """Tell whether a folder has the layout of PASCAL VOC with boxes."""
    root = Path(folder)
    return (root / "Annotations").is_dir() and (root / "ImageSets" / "Main").is_dir()


def read_voc_boxes(
    folder: str | Path, *, split: str = "trainval", difficult: bool = True
) -> VocBoxes:
    """Read the ground-truth boxes of one split; unusable images are listed with the reason.

    Args:
        folder: The folder that holds JPEGImages, Annotations and ImageSets.
        split: Name of a list in ImageSets/Main, without .txt.
        difficult: Keep objects marked as difficult or truncated, as the CorLoc protocol does.
    """
    root = Path(folder)
    images: list[AnnotatedImage] = []
    skipped: list[Skipped] = []
    # Lists of one class have a second column, 1 or -1; the image is listed either way.
    for name in read_names(root / "ImageSets" / "Main" / f"{split}.txt"):
        try:
            images.append(_read_image(root, name, difficult))
        except ImageError as error:
            skipped.append(Skipped(name, str(error)))
    if not images:
        raise ImageError(
            f"no image of split '{split}' in '{root}' can be used: {skipped[0].name}:"
            f" {skipped[0].reason}"
        )
    return VocBoxes(tuple(images), tuple(skipped))


def _read_image(root: Path, name: str, difficult: bool) -> AnnotatedImage:
    if Path(name).name != name:  # a list from elsewhere must not reach out of the folder
        raise ImageError("the name holds a path; only plain names belong into a list")
    paths = (root / "JPEGImages" / f"{name}{suffix}" for suffix in SUFFIXES)
    image = next((path for path in paths if path.is_file()), None)
    if image is None:
        raise ImageError(f"no image {name}.jpg in JPEGImages")
    xml = root / "Annotations" / f"{name}.xml"
    try:
        tree = ElementTree.parse(xml).getroot()
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise ImageError(f"Annotations/{name}.xml cannot be read: {error}") from error
    objects = list(_read_objects(tree, f"Annotations/{name}.xml", difficult))
    if not objects:
        raise ImageError(f"Annotations/{name}.xml has no boxes to compare with")
    boxes = np.array([box for _, box in objects], dtype=np.float64)
    return AnnotatedImage(name, image, boxes, tuple(kind for kind, _ in objects))


def _read_objects(
    tree: ElementTree.Element, where: str, difficult: bool
) -> Iterator[tuple[str, tuple[float, ...]]]:
    for element in tree.iter("object"):
        hard = any(
            element.findtext(mark, "0").strip() == "1" for mark in ("difficult", "truncated")
        )
        if hard and not difficult:
            continue
        sides = [element.findtext(f"bndbox/{key}", "") for key in ("xmin", "ymin", "xmax", "ymax")]
        try:
            x0, y0, x1, y1 = (float(side) for side in sides)
        except ValueError:
            raise ImageError(f"{where}: a box is {sides}, not four numbers") from None
        # VOC counts pixels from 1 and includes the last one.
        if not (0 <= x0 - 1 < x1 < 1e6 and 0 <= y0 - 1 < y1 < 1e6):
            raise ImageError(f"{where}: the box {sides} is empty or outside the image")
        yield element.findtext("name", "object"), (x0 - 1, y0 - 1, x1, y1)
