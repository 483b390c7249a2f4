"""Images to train on: those that can be read, and some that are held out."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from clearvit.errors import ImageError, TrainingError
from clearvit.images import ImageSource, Skipped, read_image
from clearvit.options import Size
from clearvit.progress import Progress


def filter_readable(
    sources: Sequence[ImageSource], patch: Size, progress: Progress | None = None
) -> tuple[list[ImageSource], list[Skipped]]:
    """Sort out files that are no images, or smaller than a patch, before the work starts."""
    good: list[ImageSource] = []
    bad: list[Skipped] = []
    for count, source in enumerate(sources, 1):
        try:
            read_large_enough(source, patch)
            good.append(source)
        except ImageError as error:
            bad.append(Skipped(source.name, str(error)))
        if progress:
            progress("check", count, len(sources))
    check_any_readable(len(good), bad)
    return good, bad


def read_large_enough(source: ImageSource, patch: Size) -> Image.Image:
    """Decode an image; refuse one that is smaller than a patch, (height, width) in pixels."""
    image = read_image(source.source)
    if image.height < patch[0] or image.width < patch[1]:
        raise ImageError(f"{image.width} x {image.height} pixels are less than a patch")
    return image


def check_any_readable(good: int, bad: Sequence[Skipped]) -> None:
    """Refuse a folder in which no image can be used."""
    if not good:
        raise ImageError(f"none of {len(bad)} images can be used: {bad[0].name}: {bad[0].reason}.")


def split_held_out(count: int, fraction: float) -> tuple[list[int], list[int]]:
    """Hold out evenly spread images, at least one if any: (training, held out)."""
    held = max(1, round(count * fraction)) if fraction else 0
    chosen = {number * count // held for number in range(held)}
    return [n for n in range(count) if n not in chosen], sorted(chosen)


def check_batch_fits(count: int, fraction: float, batch: int) -> None:
    """Refuse fewer images than make a batch once some are held out."""
    training = len(split_held_out(count, fraction)[0])
    if training < batch:
        raise TrainingError(
            f"{count} images leave {training} for training, fewer than a batch of {batch}."
            f" Add images, or use batch={max(1, training)} or less."
        )
