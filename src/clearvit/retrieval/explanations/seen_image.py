"""The images of an explanation, read again from where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import read_image
from clearvit.images.remote import is_url, store_of


def check_store(path: str, name: str, trusted: Sequence[object]) -> None:
    """Refuse to ask a server that only the index names: it may be a stranger's.

    Args:
        path: Where the index says that the image lies.
        name: Of the image, for the message.
        trusted: Places that the user named: the index and the query.
    """
    if is_url(path) and store_of(path) not in {store_of(str(place)) for place in trusted}:
        raise ImageError(
            f"'{name}' is at '{path}'; an image at a URL is read only if the index or the query is"
            " in the same bucket."
        )


def read_seen(source: str | Path | Image.Image | None, name: str) -> Image.Image:
    """Read an image whole; errors say which image of which index it is."""
    if source is None:
        raise ImageError(f"'{name}' was indexed from memory, so there is no file to draw.")
    try:
        return read_image(source)
    except ImageError as error:
        raise ImageError(
            f"the file of '{name}' cannot be drawn: {error}. If the folder has moved, refresh the"
            " index."
        ) from error


def crop_seen(image: Image.Image, aspect: float | None) -> Image.Image:
    """Cut out what the model sees: the largest centered part with height / width = aspect."""
    if aspect is None:
        return image
    across = min(image.width, image.height / aspect)
    left, upper = (image.width - across) / 2, (image.height - across * aspect) / 2
    box = (left, upper, left + across, upper + across * aspect)
    return image.crop(tuple(round(side) for side in box))  # type: ignore[arg-type]
