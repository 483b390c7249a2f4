"""Masks as image files: class numbers, or one binary mask per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.datasets.masks import MASK_FOLDERS, MASK_SUFFIXES
from clearvit.datasets.splits import VOID, read_gray
from clearvit.errors import ImageError
from clearvit.images import ImageSource
from clearvit.images.find import SUFFIXES
from clearvit.segmentation.annotations.labelled import (
    ImageFinder,
    Integers,
    Labelled,
    check_size,
    fit_to_image,
    overlay_regions,
    size_of,
)

IMAGE_FOLDERS = ("images", "image", "JPEGImages")
ENDS = ("", "_mask", "-mask", "_label", "-label")  # of the names of masks beside their images
IGNORED = 255  # the number of pixels that are ignored
HINT = "an index mask holds one class number per pixel, so grayscale or palette"


def read_mask_files(
    folder: Path, files: Sequence[PurePosixPath], finder: ImageFinder
) -> Iterator[Labelled]:
    """Read the masks of a folder: index masks, or folders of binary masks named like classes.

    Args:
        folder: The folder of the examples.
        files: Paths of all images and masks in it, relative to it.
        finder: Finds images that lie elsewhere.
    """
    listing = Listing(files)
    masks = {path: stem for path in files if (stem := listing.mask_stem(path)) is not None}
    images = {path.with_suffix(""): path for path in files if path not in masks}
    by_class: dict[PurePosixPath, list[tuple[str, Path]]] = {}
    for path, stem in masks.items():
        image = _find_image(stem, images, folder, finder)
        if image is not None:
            draw = partial(read_index, folder / path)
            yield Labelled(image, str(folder / path), None, False, draw)
            continue
        inner = PurePosixPath(*stem.parts[1:])
        if len(stem.parts) < 2 or _find_image(inner, images, folder, finder) is None:
            raise ImageError(
                f"'{folder / path}' is a mask without its image. Put the image beside it, or"
                f" into '{folder / 'images'}', under the same name."
            )
        by_class.setdefault(inner, []).append((stem.parts[0], folder / path))
    names = tuple(sorted({kind for rows in by_class.values() for kind, _ in rows}))
    for inner, rows in by_class.items():
        image = _find_image(inner, images, folder, finder)
        assert image is not None
        where = str(rows[0][1])
        yield Labelled(image, where, names, False, partial(_read_binary, rows, names, image))


class Listing:
    """The files of a folder, and which of them are masks."""

    def __init__(self, files: Sequence[PurePosixPath]) -> None:
        self.stems = Counter(path.with_suffix("") for path in files)
        self.photos = {path.with_suffix("") for path in files if not _may_be_mask(path)}
        self.marked = {stem for path in files if (stem := _strip(path)) != path.with_suffix("")}
        self.has_images = any(len(p.parts) > 1 and p.parts[0] in IMAGE_FOLDERS for p in files)

    def mask_stem(self, path: PurePosixPath) -> PurePosixPath | None:
        """Give the path of the image of a mask, without folder of masks and suffix; else None."""
        if not _may_be_mask(path):
            return None
        top, stem = path.parts[0] if len(path.parts) > 1 else "", _strip(path)
        if top in MASK_FOLDERS:
            return stem.relative_to(top)
        if top in IMAGE_FOLDERS:
            return None
        if top and self.has_images:
            return stem  # CLASS/photo.png beside images/
        if stem != path.with_suffix("") and stem in self.stems:
            return stem  # photo_mask.png or photo.jpg.png beside photo.jpg
        if path.with_suffix("") in self.photos:
            return path.with_suffix("")  # photo.png beside photo.jpg
        return None if path.with_suffix("") in self.marked else stem


def _may_be_mask(path: PurePosixPath) -> bool:
    return path.suffix.lower() in MASK_SUFFIXES


def _strip(path: PurePosixPath) -> PurePosixPath:
    """Remove the suffix, and what marks a mask before it."""
    stem = path.stem
    if PurePosixPath(stem).suffix.lower() in SUFFIXES:  # photo.jpg.png
        stem = PurePosixPath(stem).stem
    end = next((end for end in ENDS[1:] if stem.endswith(end)), "")
    return path.with_name(stem.removesuffix(end))


def _find_image(
    stem: PurePosixPath,
    images: dict[PurePosixPath, PurePosixPath],
    folder: Path,
    finder: ImageFinder,
) -> ImageSource | None:
    for place in (stem, *(PurePosixPath(name, stem) for name in IMAGE_FOLDERS)):
        if place in images:
            return ImageSource(images[place].as_posix(), folder / images[place])
    return finder.find_stem(stem.as_posix())


def read_index(path: Path) -> Integers:
    """Read class numbers; 255 is ignored."""
    found = read_gray(path, HINT)
    check_size((found.shape[0], found.shape[1]), str(path))
    values = found.astype(np.int64)
    values[values == IGNORED] = VOID
    return values


def _read_binary(
    rows: Sequence[tuple[str, Path]], names: Sequence[str], image: ImageSource
) -> Integers:
    """Put the masks of all classes of one image on one."""
    regions = [(names.index(kind), _read_region(path, image)) for kind, path in rows]
    return overlay_regions(regions, names, size_of(image), str(rows[0][1]))


def _read_region(path: Path, image: ImageSource) -> NDArray[np.bool_]:
    values = _read_any(path)
    if len(np.unique(values)) > 2 and not (values.min() == 0 and values.max() == IGNORED):
        raise ImageError(
            f"'{path}' holds more than two values; a mask of one class is 0 outside and another"
            " number inside."
        )
    region = (values > (127 if values.max() == IGNORED else 0)).astype(np.int64)
    return fit_to_image(region, image, str(path)) > 0


def _read_any(path: Path) -> Integers:
    """Read a binary mask, whose file may also be in color."""
    try:
        with Image.open(path) as image:
            if image.mode in ("RGB", "RGBA", "LA"):
                return np.array(image.convert("L")).astype(np.int64)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"'{path}' cannot be read: {error}") from error
    return read_gray(path, HINT).astype(np.int64)
