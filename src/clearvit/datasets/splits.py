"""Images and their annotations as frozen lists; files are read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import ImageSource, read_image
from clearvit.options import DepthUnit

VOID = -1  # the class of pixels that are ignored
_UNKNOWN = -2
_GRAY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
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
    def sources(self) -> list[ImageSource]:
        """All images under names relative to the folder."""
        return sources_of(self.images, self.root)


@dataclass(frozen=True)
class MaskSplit(Split):
    """Images with a class for each pixel."""

    masks: tuple[Path, ...]
    classes: tuple[str, ...]
    ids: tuple[tuple[int, int], ...]  # (number in the file, class from 0 or VOID)

    def read(self, index: int) -> Integers:
        """Read one mask, (height, width): classes from 0, VOID where unlabelled."""
        path = self.masks[index]
        values = read_gray(path, "a mask holds one class number per pixel")
        table = np.full(65536, _UNKNOWN, dtype=np.int64)
        for value, meaning in self.ids:
            table[value] = meaning
        if not (0 <= int(values.min()) and int(values.max()) < len(table)):
            raise ImageError(f"'{path}' holds {values.max()}, which is no class number.")
        mask: Integers = table[values]
        if (mask == _UNKNOWN).any():
            wrong = ", ".join(map(str, np.unique(values[mask == _UNKNOWN])[:5]))
            raise ImageError(
                f"'{path}' holds the class number {wrong}, which is none of the"
                f" {len(self.classes)} classes. Correct the mask, or choose another layout."
            )
        expected = image_size(self.images[index])
        if mask.shape != expected:
            raise ImageError(
                f"'{path}' has {mask.shape[0]} x {mask.shape[1]} pixels (height x width), its image"
                f" '{self.images[index].name}' has {expected[0]} x {expected[1]}."
            )
        return mask

    def select(self, indices: Sequence[int]) -> MaskSplit:
        """Return a split of some of the images, in the order given."""
        images, masks = _pick(self.images, indices), _pick(self.masks, indices)
        return MaskSplit(self.name, self.root, images, masks, self.classes, self.ids)


@dataclass(frozen=True)
class DepthSplit(Split):
    """Images with a depth for each pixel."""

    depths: tuple[Path, ...]
    unit: DepthUnit  # of the numbers in the files
    nearest: float  # meters; pixels nearer or farther are invalid
    farthest: float

    def read(self, index: int) -> Floats:
        """Read one map, (height, width) in meters; 0 where invalid."""
        path = self.depths[index]
        if path.suffix == ".npy":
            values = _array(path)
        else:
            values = read_gray(path, "a depth map holds one number per pixel", ("F",))
        depth = values.astype(np.float64) / (1000 if self.unit == "millimeters" else 1)
        with np.errstate(invalid="ignore"):
            depth[~((depth >= self.nearest) & (depth <= self.farthest))] = 0
        if not depth.any():
            raise ImageError(
                f"'{path}' has no depth between {self.nearest} and {self.farthest} m. Is the unit"
                f" {self.unit}?"
            )
        height, width = image_size(self.images[index])
        if abs(depth.shape[1] * height - depth.shape[0] * width) > 0.02 * depth.shape[0] * width:
            raise ImageError(
                f"'{path}' has {depth.shape[0]} x {depth.shape[1]} pixels (height x width), which"
                f" is not the shape of its image '{self.images[index].name}', {height} x {width}."
            )
        return depth

    def select(self, indices: Sequence[int]) -> DepthSplit:
        """Return a split of some of the images, in the order given."""
        images, depths = _pick(self.images, indices), _pick(self.depths, indices)
        limits = (self.unit, self.nearest, self.farthest)
        return DepthSplit(self.name, self.root, images, depths, *limits)


@dataclass(frozen=True)
class LabelSplit(Split):
    """Images with one class each."""

    labels: tuple[int, ...]
    classes: tuple[str, ...]

    def select(self, indices: Sequence[int]) -> LabelSplit:
        """Return a split of some of the images, in the order given."""
        images, labels = _pick(self.images, indices), _pick(self.labels, indices)
        return LabelSplit(self.name, self.root, images, labels, self.classes)


T = TypeVar("T")


def _pick(items: Sequence[T], indices: Sequence[int]) -> tuple[T, ...]:
    return tuple(items[i] for i in indices)


def load_image(path: Path) -> Image.Image:
    """Decode an image; an error names the file."""
    try:
        return read_image(path)
    except ImageError as error:
        raise ImageError(f"'{path}': {error}") from error


def image_size(path: Path) -> tuple[int, int]:
    """Read (height, width) of an upright image from its header."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            rotated = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"'{path}' cannot be read: {error}") from error
    return (width, height) if rotated else (height, width)


def read_gray(path: Path, hint: str, modes: tuple[str, ...] = ()) -> NDArray[np.generic]:
    """Read the numbers of an image with one channel, (height, width).

    Args:
        path: The file.
        hint: End of the error message if the image has several channels.
        modes: Pillow modes accepted beside the integer ones.
    """
    try:
        with Image.open(path) as image:
            if image.mode not in _GRAY + modes:
                raise ImageError(f"'{path}' is an image of mode {image.mode}; {hint}.")
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


def read_lines(path: Path) -> list[str]:
    """Read the lines of a list, without empty ones; an error says which lists there are."""
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt"))) or "none"
        raise ImageError(f"'{path}' cannot be read ({error}); lists there: {there}.") from error


def read_names(path: Path) -> list[str]:
    """Read the first column of a list, each name once; the list must not be empty."""
    names = list(dict.fromkeys(line.split()[0] for line in read_lines(path)))
    if not names:
        raise ImageError(f"'{path}' lists no images; choose another split.")
    return names


def sources_of(images: Sequence[Path], root: Path) -> list[ImageSource]:
    """Name images by their paths relative to a folder; those outside it by their whole paths."""
    return [
        ImageSource((p.relative_to(root) if p.is_relative_to(root) else p).as_posix(), p)
        for p in images
    ]
