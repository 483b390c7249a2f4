"""Masks on disk: PNG files that carry who made them, from what, and how sure."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from clearvit.errors import ImageError, StoreError
from clearvit.files import MADE_BY, short_name, written_whole
from clearvit.images import ImageSource, Skipped, read_image
from clearvit.schema import Rule, number, table, text, whole
from clearvit.segmentation.segmenter import Segmenter

FACTS = "clearvit-mask"  # key of the facts in the text of a PNG file
_RULE: Rule = table(
    {"key": text, "image": text, "confidence": number(0, 1), "pixels": whole(0, (1 << 32) - 1)}
)
MASK_STRENGTH = 0.55  # of the colors of a mask on its image
Bytes = NDArray[np.uint8]


def palette() -> list[int]:
    """Give the 256 colors of PASCAL VOC's masks, red, green, blue by turns: bits spread apart."""
    colors = []
    for number_ in range(256):
        rgb, rest = [0, 0, 0], number_
        for shift in range(7, -1, -1):
            for channel in range(3):
                rgb[channel] |= (rest >> channel & 1) << shift
            rest >>= 3
        colors += rgb
    return colors


PALETTE = palette()


@dataclass(frozen=True)
class MaskFacts:
    """What a mask file says about itself."""

    key: str  # of the segmenter
    image: str  # hash of the image
    confidence: float
    pixels: int  # checksum: another one means that somebody edited the mask


def write_mask(path: Path, mask: Bytes, facts: MaskFacts) -> None:
    """Write class numbers (height, width) as a PNG file with a palette, whole or not at all."""
    image = Image.fromarray(mask)
    image.putpalette(PALETTE)
    info = PngInfo()
    info.add_text("Software", MADE_BY)
    info.add_text(FACTS, json.dumps(vars(facts)))
    with written_whole(path) as temporary:
        image.save(temporary, format="png", pnginfo=info)


def checksum(mask: Bytes) -> int:
    """Give a number that changes with any pixel."""
    return zlib.crc32(np.ascontiguousarray(mask).tobytes(), mask.shape[1])


def read_facts(path: Path) -> MaskFacts | None:
    """Read what a mask file says about itself from its head; None if it is not ours."""
    try:
        with Image.open(path) as image:
            content = json.loads(str(image.info.get(FACTS, "")))
    except (OSError, ValueError, SyntaxError, RecursionError, Image.DecompressionBombError):
        return None
    return None if _RULE(content) else MaskFacts(**content)


def read_mask(path: Path) -> Bytes:
    """Read class numbers, (height, width)."""
    try:
        with Image.open(path) as image:
            return np.array(image if image.mode in ("P", "L") else image.convert("L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StoreError(f"the mask '{path}' cannot be read: {error}") from error


def is_edited(path: Path, facts: MaskFacts | None) -> bool:
    """Tell whether somebody changed a mask, or put one of their own there."""
    if facts is None:
        return True
    try:
        return checksum(read_mask(path)) != facts.pixels
    except StoreError:
        return False  # damaged; it is made again


def mask_paths(images: Sequence[ImageSource], folder: Path) -> dict[str, Path]:
    """Name the mask of every image: photo.png for photo.jpg, photo.jpg.png if there are two."""
    plain = [_place(image.name, whole_name=False) for image in images]
    taken: dict[PurePosixPath, int] = {}
    for place in plain:
        taken[place] = taken.get(place, 0) + 1
    return {
        image.name: folder
        / (place if taken[place] == 1 else _place(image.name, whole_name=True)).as_posix()
        for image, place in zip(images, plain, strict=True)
    }


def _place(name: str, *, whole_name: bool) -> PurePosixPath:
    """Keep the folders of a name, and never lead out of the directory."""
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part not in ("/", "..", ".")] or ["image"]
    last = parts[-1] if whole_name else (PurePosixPath(parts[-1]).stem or parts[-1])
    return PurePosixPath(*parts[:-1], f"{short_name(last)}.png")


@dataclass(frozen=True)
class Mask:
    """The mask of one image.

    Attributes:
        name: Of the image.
        path: The PNG file: class numbers with a palette, at the size of the image.
        confidence: 0..1, the mean margin of the best class over the next; None if edited by hand.
        classes: Names by class number.
        image: Where the image is.
    """

    name: str
    path: Path
    confidence: float | None
    classes: dict[int, str]
    image: ImageSource

    @property
    def array(self) -> Bytes:
        """Class numbers, (height, width)."""
        return read_mask(self.path)

    @property
    def edited(self) -> bool:
        """Whether somebody drew or changed it by hand; such a mask is kept."""
        return self.confidence is None

    def fractions(self) -> dict[str, float]:
        """Give the fraction of the pixels of each class that occurs, by name."""
        counts = np.bincount(self.array.ravel(), minlength=1)
        shown = {n: float(c / counts.sum()) for n, c in enumerate(counts) if c}
        return {self.classes.get(n, f"class {n}"): part for n, part in shown.items()}

    def show(self, side: int = 1024) -> Image.Image:
        """Give the image with the mask in color on it, its longer side at most `side` pixels."""
        return overlay(read_image(self.image.source), self.array, side)


def overlay(image: Image.Image, mask: Bytes, side: int) -> Image.Image:
    """Draw a mask on its image; number 0 is left as it is, other classes have an edge."""
    factor = min(1.0, side / max(image.size))
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    small = np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
    colors = np.array(PALETTE, dtype=np.float64).reshape(256, 3)[small]
    strength = np.where(small > 0, MASK_STRENGTH, 0.0)
    strength[_edges(small)] = 1.0
    mixed = pixels * (1 - strength[..., None]) + colors * strength[..., None]
    return Image.fromarray(mixed.round().astype(np.uint8))


def _edges(mask: Bytes) -> NDArray[np.bool_]:
    edges = np.zeros(mask.shape, dtype=bool)
    edges[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    edges[1:] |= mask[1:] != mask[:-1]
    return edges


class Masks(Sequence[Mask]):
    """The masks of a folder, read from disk when they are needed.

    Attributes:
        classes: Names by class number.
        skipped: Images that could not be read, and why.
        segmenter: The model that made them; `save` writes it.
        folder: Where the files are; a temporary directory if no `out` was given.
    """

    def __init__(
        self,
        masks: Sequence[Mask],
        skipped: Sequence[Skipped],
        segmenter: Segmenter,
        folder: Path,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self._masks, self.skipped = tuple(masks), tuple(skipped)
        self.segmenter, self.folder = segmenter, folder
        self.classes = dict(zip(segmenter.numbers, segmenter.classes, strict=True))
        self._temporary = temporary  # removed with this object

    @overload
    def __getitem__(self, index: int) -> Mask: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mask]: ...

    def __getitem__(self, index: int | slice) -> Mask | Sequence[Mask]:
        return self._masks[index]

    def __len__(self) -> int:
        return len(self._masks)

    def __iter__(self) -> Iterator[Mask]:
        return iter(self._masks)

    def __repr__(self) -> str:
        names = ", ".join(self.classes.values())
        return f"Masks({len(self)} images, classes {names}, in '{self.folder}')"

    def _repr_html_(self) -> str:
        """Show the least confident masks in a notebook, those to look at first."""
        from clearvit.report.notebook import MOST_IMAGES, THUMBNAIL, card, png_of

        images = []
        for mask in self.least_confident(MOST_IMAGES):
            try:
                drawn = png_of(mask.show(THUMBNAIL))
            except (ImageError, StoreError, OSError):
                continue  # the image or its mask is gone
            images.append((drawn, f"{mask.name}: {mask.confidence or 0:.2f}"))
        text = f"Method: {self.segmenter.choice}. Least confident first."
        return card(repr(self), text=text, images=images)

    def least_confident(self, count: int) -> list[Mask]:
        """Give the masks to look at first; those edited by hand are not among them."""
        sure = [(mask.confidence, n) for n, mask in enumerate(self) if mask.confidence is not None]
        return [self._masks[n] for _, n in sorted(sure)[:count]]

    def to_json(self) -> dict[str, Any]:
        """Give names, files and confidence as JSON holds them."""
        return {
            "model": self.segmenter.model,
            "method": str(self.segmenter.choice),
            "classes": {str(n): name for n, name in self.classes.items()},
            "images": [
                {
                    "name": mask.name,
                    "mask": mask.path.relative_to(self.folder).as_posix(),
                    "confidence": None if mask.confidence is None else round(mask.confidence, 4),
                    "edited": mask.edited,
                }
                for mask in self
            ],
            "skipped": [{"name": bad.name, "reason": bad.reason} for bad in self.skipped],
        }
