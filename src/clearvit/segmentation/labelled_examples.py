"""The labelled examples of one run: whatever the files say, as masks of one set of classes."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from clearvit.datasets.class_ids import default_names
from clearvit.datasets.splits import VOID, read_lines
from clearvit.errors import ImageError, closest
from clearvit.files import read_json
from clearvit.images import ImageSource, find_images, listing_of
from clearvit.images.find import SUFFIXES
from clearvit.images.walk import walk
from clearvit.segmentation.annotations.coco import is_coco, read_coco
from clearvit.segmentation.annotations.labelled import (
    UNLABELLED,
    ImageFinder,
    Integers,
    Labelled,
)
from clearvit.segmentation.annotations.labelme import is_labelme, read_labelme
from clearvit.segmentation.annotations.mask_files import IMAGE_FOLDERS, read_index, read_mask_files
from clearvit.segmentation.annotations.strokes import is_strokes, read_strokes
from clearvit.segmentation.config import Unlabelled

BACKGROUND = "background"
CLASSES = "classes.txt"
MOST_CLASSES = 255  # numbers that a mask of 8 bits holds beside the one of ignored pixels
READERS = ((is_strokes, read_strokes), (is_labelme, read_labelme), (is_coco, read_coco))

ExampleInput: TypeAlias = "str | os.PathLike[str] | Sequence[tuple[Any, ArrayLike]]"
"""A folder, a JSON file, or pairs of an image (path or PIL) and an index mask (array or path)."""


@dataclass(frozen=True)
class Examples:
    """Labelled images, read one at a time, and their classes.

    Attributes:
        classes: Names by place, the K values of a mask that is read.
        numbers: The number of each class in files, ascending.
        labelled: The images and what labels them.
        pixels: Labelled pixels by image and class.
    """

    classes: tuple[str, ...]
    numbers: tuple[int, ...]
    labelled: tuple[Labelled, ...]
    unlabelled: Unlabelled = "auto"
    pixels: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.labelled)

    @property
    def sources(self) -> list[ImageSource]:
        """The images, as all verbs take them."""
        return [one.image for one in self.labelled]

    def read(self, index: int) -> Integers:
        """Read one mask at the size of its image, (height, width): places, VOID where ignored."""
        one = self.labelled[index]
        mask = one.read()
        table = np.full(int(max(mask.max(), 0)) + 3, VOID, dtype=np.int64)  # the last two: -2, -1
        for number, place in self._places(one, mask).items():
            table[number] = place
        if self._fills_background(one) and BACKGROUND in self.classes:
            table[UNLABELLED] = self.classes.index(BACKGROUND)
        drawn: Integers = table[mask]
        return drawn

    def _places(self, one: Labelled, mask: Integers) -> dict[int, int]:
        """Give the place of each number in one file's mask."""
        found = [int(n) for n in np.unique(mask) if n >= 0]
        if one.names is not None:
            return {n: self.classes.index(one.names[n]) for n in found}
        for number in found:
            if number not in self.numbers:
                raise ImageError(
                    f"'{one.file}' holds the class number {number}, which is none of the"
                    f" {len(self.classes)} classes ({self._listed()}). Correct the mask, or list"
                    f" the classes in {CLASSES}."
                )
        return {n: self.numbers.index(n) for n in found}

    def _fills_background(self, one: Labelled) -> bool:
        return one.names is not None and implies_background(one, self.unlabelled)

    def _listed(self) -> str:
        pairs = [f"{n} {name}" for n, name in zip(self.numbers, self.classes, strict=True)]
        return ", ".join(pairs[:10]) + (", …" if len(pairs) > 10 else "")

    def digest(self) -> str:
        """Hash the images and all labels, so that an edited example is noticed."""
        digest = hashlib.sha256(json.dumps([self.classes, self.numbers]).encode())
        digest.update(listing_of(self.sources).encode())
        for index in range(len(self)):
            digest.update(self.read(index).astype(np.int16).tobytes())
        return digest.hexdigest()


def implies_background(one: Labelled, unlabelled: Unlabelled) -> bool:
    """Tell whether pixels of which a file says nothing are background."""
    return unlabelled == "background" or (unlabelled == "auto" and not one.sparse)


def read_examples(
    source: ExampleInput,
    *,
    images: Sequence[ImageSource] = (),
    unlabelled: Unlabelled = "auto",
) -> Examples:
    """Read labelled images from a folder, a JSON file or pairs of image and mask.

    Args:
        source: A folder that holds any mixture of index masks, folders of binary masks, COCO,
            LabelMe and strokes; one such JSON file; or pairs (image, index mask).
        images: Where else images of labels are looked for, by their names.
        unlabelled: What pixels without a label are; see `SegmentConfig`.

    Raises:
        ImageError: A file cannot be used; names it.
    """
    names: tuple[str, ...] | None = None
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        labelled = _read_path(folder, images)
        listing = (folder if folder.is_dir() else folder.parent) / CLASSES
        if listing.is_file():
            names = tuple(line.strip() for line in read_lines(listing))
    else:
        labelled = _read_pairs(source)
    if not labelled:
        raise ImageError(
            f"'{source}' holds no labels. Put index masks (PNG), or JSON of COCO, LabelMe or"
            " strokes there, beside their images."
        )
    return _count(_number_classes(labelled, names, unlabelled))


def _read_path(path: Path, images: Sequence[ImageSource]) -> list[Labelled]:
    if path.is_file():
        return _read_json(path, ImageFinder(_image_folders(path.parent), images))
    if not path.is_dir():
        raise ImageError(f"'{path}' does not exist; give a folder of examples or a JSON file.")
    finder = ImageFinder(_image_folders(path), images)
    files = [PurePosixPath(name) for name in sorted(walk(str(path)))]
    labelled: list[Labelled] = []
    for name in files:
        if name.suffix.lower() == ".json":
            labelled += _read_json(path / name, finder.within((path / name).parent))
    named = {str(one.image.source) for one in labelled}
    rest = [f for f in files if f.suffix.lower() in SUFFIXES and str(path / f) not in named]
    return [*labelled, *read_mask_files(path, rest, finder)]


def _image_folders(folder: Path) -> list[Path]:
    return [folder, *(folder / name for name in IMAGE_FOLDERS)]


def _read_json(path: Path, finder: ImageFinder) -> list[Labelled]:
    content = read_json(path, ImageError)
    for fits, read in READERS:
        if fits(content):
            return list(read(path, content, finder))
    raise ImageError(
        f"'{path}' is neither COCO's nor LabelMe's JSON nor strokes of clearvit. Remove it from the"
        " examples."
    )


def _read_pairs(pairs: Iterable[Any]) -> list[Labelled]:
    labelled = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ImageError(
                f"example {number} is a {type(pair).__name__}; give pairs of an image and a mask."
            )
        image = find_images([pair[0]])[0]
        labelled.append(_label_pair(image, pair[1], f"mask {number}"))
    return labelled


def _label_pair(image: ImageSource, mask: Any, name: str) -> Labelled:
    if isinstance(mask, (str, os.PathLike)):
        path = Path(mask)
        return Labelled(image, str(path), None, False, lambda: read_index(path))
    values = np.array(mask.convert("L") if isinstance(mask, Image.Image) else mask)
    if values.ndim != 2 or values.dtype.kind not in "buif":
        raise ImageError(
            f"{name} is {values.dtype} {values.shape}; a mask is class numbers (height, width)."
        )
    whole = values.astype(np.int64)
    whole[whole == 255] = VOID
    return Labelled(image, name, None, False, whole.copy)


def _number_classes(
    labelled: Sequence[Labelled], names: tuple[str, ...] | None, unlabelled: Unlabelled
) -> Examples:
    """Number the classes of all files together; a list of names decides, if there is one."""
    spoken = list(dict.fromkeys(n for one in labelled for n in one.names or ()))
    implied = any(one.names is not None and implies_background(one, unlabelled) for one in labelled)
    if names is not None:
        for name in spoken:
            if name not in names:
                raise ImageError(
                    f"class '{name}' is not listed in {CLASSES}.{closest(name, names)}"
                )
        if implied and BACKGROUND not in names:
            raise ImageError(f"list '{BACKGROUND}' in {CLASSES}, or use unlabelled='ignore'.")
        numbers = tuple(range(len(names)))
    elif spoken:
        first = [BACKGROUND] if implied or BACKGROUND in spoken else []
        names = (*first, *(name for name in spoken if name != BACKGROUND))
        numbers = tuple(range(len(names)))
    else:
        numbers = _numbers_in(labelled)
        named = default_names(max(numbers, default=0) + 1)
        names = tuple(BACKGROUND if n == 0 else named[n] for n in numbers)
    for name in names:
        if not name.isprintable():  # classes.txt has one name per line
            raise ImageError(f"class {name!r} has a line break or another control character.")
    if len(names) > MOST_CLASSES:
        raise ImageError(f"the examples have {len(names)} classes; a mask holds {MOST_CLASSES}.")
    return Examples(names, numbers, tuple(labelled), unlabelled)


def _numbers_in(labelled: Sequence[Labelled]) -> tuple[int, ...]:
    found: set[int] = set()
    for one in labelled:
        own = {int(n) for n in np.unique(one.draw()) if n >= 0}
        if own and max(own) >= MOST_CLASSES:
            raise ImageError(
                f"'{one.file}' holds the number {max(own)}. Index masks hold class numbers from 0"
                f" to {MOST_CLASSES - 1}, and 255 for pixels to ignore."
            )
        found |= own
    return tuple(sorted(found))


def _count(examples: Examples) -> Examples:
    """Count pixels, leave out classes without any, and refuse what teaches nothing."""
    rows = []
    for index in range(len(examples)):
        mask = examples.read(index)
        rows.append(np.bincount(mask[mask >= 0], minlength=len(examples.classes)))
    table = np.stack(rows)
    kept = [n for n, count in enumerate(table.sum(0)) if count]
    there = tuple(examples.classes[n] for n in kept)
    if len(there) < 2:
        what = f"only of '{there[0]}'" if there else "of no class"
        raise ImageError(
            f"the examples have labelled pixels {what}; two classes are needed. Label some of the"
            f" rest as '{BACKGROUND}', or use unlabelled='background'."
        )
    empty = [repr(name) for name in examples.classes if name not in there]
    if empty:
        warnings.warn(
            f"no pixel of the examples is of class {', '.join(empty[:10])}; what has no example is"
            " never found.",
            stacklevel=3,
        )
    numbers = tuple(examples.numbers[n] for n in kept)
    pixels = tuple(tuple(int(n) for n in row[kept]) for row in table)
    return Examples(there, numbers, examples.labelled, examples.unlabelled, pixels)
