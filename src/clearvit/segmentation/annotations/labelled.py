"""One labelled image as its file describes it, before its classes are numbered with the others'."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.datasets.splits import VOID, image_size
from clearvit.errors import ImageError
from clearvit.images import ImageSource
from clearvit.options import Size
from clearvit.probes.patches import resize_nearest

UNLABELLED = -2  # a pixel of which the file says nothing
MOST_PIXELS = 100_000_000  # of one mask
MOST_WORK = 20_000_000_000  # pixels that all shapes of one mask may cost; a few minutes
RATIO = 0.02  # by which height / width of a mask and its image may differ
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """What one file says about one image.

    `draw` gives the numbers of the classes, (height, width) of the annotation: places in `names`
    or, where that is None, the numbers of an index mask; VOID where ignored, UNLABELLED else.
    """

    image: ImageSource
    file: str  # for messages
    names: tuple[str, ...] | None
    sparse: bool  # strokes: what is not labelled is not known, rather than background
    draw: Callable[[], Integers]

    def read(self) -> Integers:
        """Draw the labels at the size of the image."""
        return fit_to_image(self.draw(), self.image, self.file)


def check_size(size: Size, file: str) -> Size:
    """Refuse annotations of an image that is too large to draw, before they are drawn."""
    if size[0] * size[1] > MOST_PIXELS:
        raise ImageError(
            f"'{file}' labels an image of {size[0]} x {size[1]} pixels; at most {MOST_PIXELS} are"
            " read."
        )
    return size


def check_work(pixels: int, size: Size, file: str) -> None:
    """Refuse shapes that would take hours to draw; `pixels` is what all of them cost."""
    if pixels > MOST_WORK:
        raise ImageError(
            f"'{file}' has more or larger shapes than can be drawn on {size[0]} x {size[1]} pixels."
            " Label a smaller copy of the image, or fewer parts of it."
        )


def fit_to_image(mask: Integers, image: ImageSource, file: str) -> Integers:
    """Resize a mask to its image, if the aspect ratio is the same.

    Raises:
        ImageError: The shapes differ; names the file.
    """
    height, width = size_of(image)
    rows, columns = mask.shape
    if (rows, columns) == (height, width):
        return mask
    if abs(columns * height - rows * width) > RATIO * rows * width:
        raise ImageError(
            f"'{file}' labels {rows} x {columns} pixels (height x width), its image '{image.name}'"
            f" has {height} x {width}, which is another shape. Is it the right image?"
        )
    resized: Integers = resize_nearest(mask, (height, width)).astype(np.int64)
    return resized


def size_of(image: ImageSource) -> Size:
    """Read (height, width) of an upright image."""
    if isinstance(image.source, Image.Image):
        return image.source.height, image.source.width
    return image_size(Path(image.source))


def overlay_regions(
    regions: Iterable[tuple[int, NDArray[np.bool_]]], names: Sequence[str], size: Size, file: str
) -> Integers:
    """Put regions of classes on one mask; pixels of two classes become VOID, with a warning."""
    mask = np.full(size, UNLABELLED, dtype=np.int64)
    disputed, pair = np.zeros(size, dtype=bool), (0, 0)
    for number, region in regions:
        both = region & (mask != UNLABELLED) & (mask != number)
        if both.any() and not disputed.any():
            pair = (int(mask[both][0]), number)
        disputed |= both
        mask[region] = number
    if disputed.any():
        mask[disputed] = VOID
        warnings.warn(
            f"'{file}' gives {int(disputed.sum())} pixels two classes, first"
            f" '{names[pair[0]]}' and '{names[pair[1]]}'; these pixels are ignored.",
            stacklevel=2,
        )
    return mask


class ImageFinder:
    """Finds the image that an annotation file names, and nothing outside the given folders."""

    def __init__(self, folders: Sequence[Path], images: Sequence[ImageSource] = ()) -> None:
        self._folders = folders
        self._by_name = {image.name: image for image in images}
        self._by_stem: dict[str, list[ImageSource]] = {}
        for image in images:
            stem = PurePosixPath(image.name).with_suffix("").as_posix()
            self._by_stem.setdefault(stem, []).append(image)

    def within(self, folder: Path) -> ImageFinder:
        """Look into another folder first."""
        other = copy.copy(self)
        other._folders = [folder, *self._folders]
        return other

    def find(self, name: str, file: str) -> ImageSource:
        """Find an image by the name in an annotation file, with or without its folders."""
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:  # of a file from elsewhere
            path = PurePosixPath(path.name)
        for wanted in dict.fromkeys((path, PurePosixPath(path.name))):
            for folder in self._folders:
                found = folder / wanted
                if found.is_file():
                    return ImageSource(wanted.as_posix(), found)
            if wanted.as_posix() in self._by_name:
                return self._by_name[wanted.as_posix()]
        places = ", ".join(f"'{folder}'" for folder in self._folders)
        raise ImageError(
            f"'{file}' labels '{name}', which is neither in {places} nor among the images. Put it"
            " beside its labels."
        )

    def find_stem(self, stem: str) -> ImageSource | None:
        """Find the image among those to segment whose path without suffix is `stem`."""
        found = self._by_stem.get(stem, [])
        return found[0] if len(found) == 1 else None
