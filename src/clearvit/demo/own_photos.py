"""Photos of the user's own for the demo: a few of them, with names that differ."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import Skipped, find_images, read_image, spread_evenly

FEWEST = 12  # photos: ten to learn from, two kept out
LARGEST = 1024  # pixels of the longer side of a copy


def read_own_photos(images: Path, most: int) -> tuple[dict[str, Image.Image], list[Skipped]]:
    """Read up to `most` photos, evenly over all: small copies by name, and what is no image.

    Raises:
        ImageError: Fewer than twelve can be read.
    """
    found = find_images(images)
    if len(found) < FEWEST:
        raise ImageError(f"'{images}' holds {len(found)} images; the demo needs at least {FEWEST}.")
    photos: dict[str, Image.Image] = {}
    skipped: list[Skipped] = []
    for source in spread_evenly(found, most):
        try:
            photo = shrink(read_image(source.source))
        except ImageError as error:
            skipped.append(Skipped(source.name, str(error)))
        else:
            photos[_name(source.name, photos)] = photo
    if len(photos) < FEWEST:
        raise ImageError(
            f"{len(photos)} of {len(photos) + len(skipped)} images can be read in '{images}'; the"
            f" demo needs at least {FEWEST}. {skipped[0].name}: {skipped[0].reason}."
        )
    return photos, skipped


def shrink(image: Image.Image) -> Image.Image:
    """Copy an image, at most 1024 pixels long."""
    small = image.copy()
    small.thumbnail((LARGEST, LARGEST))
    return small


def _name(name: str, taken: dict[str, Image.Image]) -> str:
    """Make a file name without a suffix that no other photo has."""
    stem = PurePosixPath(name).with_suffix("").name or "image"
    unique, number = stem, 1
    while unique in taken:
        number += 1
        unique = f"{stem}-{number}"
    return unique
