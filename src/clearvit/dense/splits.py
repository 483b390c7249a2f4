"""Images and what is known about them, as frozen lists; files are read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import Picture, read_image

VOID = -1  # the class of pixels that count for nothing
_UNKNOWN = -2
_GREY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
_ORIENTATION = 0x0112

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """Some images of a data set."""

    name: str
    root: Path
    images: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def pictures(self) -> list[Picture]:
        """Images under names that are unique and do not tell where the folder is."""
        return [Picture(_name(path, self.root), path) for path in self.images]


@dataclass(frozen=True)
class MaskSplit(Split):
    """Images with a class for each pixel."""

    masks: tuple[Path, ...]
    classes: tuple[str, ...]
    ids: tuple[tuple[int, int], ...]  # (number in the file, class from 0 or VOID)

    def read(self, index: int) -> Integers:
        """Read one mask, (height, width): classes from 0, VOID where nothing is known."""
        path = self.masks[index]
        values = read_grey(path, "a mask holds one class number per pixel")
        table = np.full(65536, _UNKNOWN, dtype=np.int64)
        for value, meaning in self.ids:
            table[value] = meaning
        if not (0 <= int(values.min()) and int(values.max()) < len(table)):
            raise ImageError(f"'{path}' holds numbers that are no classes: {values.max()}.")
        mask: Integers = table[values]
        if (mask == _UNKNOWN).any():
            wrong = ", ".join(map(str, np.unique(values[mask == _UNKNOWN])[:5]))
            raise ImageError(
                f"'{path}' holds the class number {wrong}, which is none of the"
                f" {len(self.classes)} classes. Mend the mask, or choose another layout."
            )
        expected = picture_size(self.images[index])
        if mask.shape != expected:
            raise ImageError(
                f"'{path}' has {mask.shape[0]} x {mask.shape[1]} pixels (height x width), its image"
                f" '{self.images[index].name}' has {expected[0]} x {expected[1]}."
            )
        return mask

    def chosen(self, indices: Sequence[int]) -> MaskSplit:
        """Keep some images, in the order given."""
        images, masks = taken(self.images, indices), taken(self.masks, indices)
        return MaskSplit(self.name, self.root, images, masks, self.classes, self.ids)


@dataclass(frozen=True)
class DepthSplit(Split):
    """Images with a distance for each pixel."""

    depths: tuple[Path, ...]
    unit: Literal["millimetres", "metres"]
    nearest: float  # metres; what is nearer or farther is invalid
    farthest: float

    def read(self, index: int) -> Floats:
        """Read one map, (height, width) in metres; 0 where nothing is known."""
        path = self.depths[index]
        if path.suffix == ".npy":
            values = _array(path)
        else:
            values = read_grey(path, "a depth map holds one number per pixel", ("F",))
        depth = values.astype(np.float64) / (1000 if self.unit == "millimetres" else 1)
        with np.errstate(invalid="ignore"):
            depth[~((depth >= self.nearest) & (depth <= self.farthest))] = 0
        if not depth.any():
            raise ImageError(
                f"'{path}' has no depth between {self.nearest} and {self.farthest} m. Is the unit"
                f" {self.unit}?"
            )
        height, width = picture_size(self.images[index])
        if abs(depth.shape[1] * height - depth.shape[0] * width) > 0.02 * depth.shape[0] * width:
            raise ImageError(
                f"'{path}' has {depth.shape[0]} x {depth.shape[1]} pixels (height x width), which"
                f" is not the shape of its image '{self.images[index].name}', {height} x {width}."
            )
        return depth

    def chosen(self, indices: Sequence[int]) -> DepthSplit:
        """Keep some images, in the order given."""
        images, depths = taken(self.images, indices), taken(self.depths, indices)
        limits = (self.unit, self.nearest, self.farthest)
        return DepthSplit(self.name, self.root, images, depths, *limits)


@dataclass(frozen=True)
class LabelSplit(Split):
    """Images with one class each."""

    labels: tuple[int, ...]
    classes: tuple[str, ...]

    def chosen(self, indices: Sequence[int]) -> LabelSplit:
        """Keep some images, in the order given."""
        images, labels = taken(self.images, indices), taken(self.labels, indices)
        return LabelSplit(self.name, self.root, images, labels, self.classes)


T = TypeVar("T")


def taken(items: Sequence[T], indices: Sequence[int]) -> tuple[T, ...]:
    """Take some of the items."""
    return tuple(items[i] for i in indices)


def read_photo(path: Path) -> Image.Image:
    """Decode a photo; an error names the file."""
    try:
        return read_image(path)
    except ImageError as error:
        raise ImageError(f"'{path}': {error}") from error


def picture_size(path: Path) -> tuple[int, int]:
    """Read (height, width) of a picture as it is shown, from its header."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"'{path}' cannot be read: {error}") from error
    return (width, height) if turned else (height, width)


def read_grey(path: Path, what: str, more: tuple[str, ...] = ()) -> NDArray[np.generic]:
    """Read the numbers of a picture without colours, (height, width).

    Args:
        path: The file.
        what: Said to whom the picture has colours.
        more: Modes of Pillow that are welcome beside the integer ones.
    """
    try:
        with Image.open(path) as image:
            if image.mode not in _GREY + more:
                raise ImageError(f"'{path}' is a picture of mode {image.mode}; {what}.")
            values: NDArray[np.generic] = np.array(image)
    except FileNotFoundError:
        raise ImageError(f"'{path}' does not exist.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"'{path}' cannot be read: {error}") from error
    return values.astype(np.uint8) if values.dtype == bool else values


def _array(path: Path) -> NDArray[np.generic]:
    try:
        values: NDArray[np.generic] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ImageError(f"'{path}' cannot be read: {error}") from error
    if values.ndim != 2 or values.dtype.kind not in "uif":
        raise ImageError(
            f"'{path}' is {values.dtype} {values.shape}; a depth map is (height, width)."
        )
    return values


def _name(path: Path, root: Path) -> str:
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
