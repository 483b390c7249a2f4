"""Pictures to learn from: those that can be read, and some that are held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError, TrainingError
from clearvit.images import Picture, Skipped, read_image


def readable(
    pictures: Sequence[Picture],
    backbone: Backbone,
    report: Callable[[int, int, str], None] | None = None,
) -> tuple[list[Picture], list[Skipped]]:
    """Sort out files that are no pictures, or smaller than a patch, before the work starts."""
    good: list[Picture] = []
    bad: list[Skipped] = []
    for count, picture in enumerate(pictures, 1):
        try:
            width, height = read_image(picture.source).size
            if height < backbone.patch[0] or width < backbone.patch[1]:
                raise ImageError(f"{width} x {height} pixels are less than a patch")
            good.append(picture)
        except ImageError as error:
            bad.append(Skipped(picture.name, str(error)))
        if report:
            report(count, len(pictures), "")
    if not good:
        raise ImageError(
            f"none of {len(pictures)} images can be used: {bad[0].name}: {bad[0].reason}."
        )
    return good, bad


def split(count: int, share: float) -> tuple[list[int], list[int]]:
    """Hold out evenly spread pictures, at least one: (training, held out)."""
    held = max(1, round(count * share))
    chosen = {number * count // held for number in range(held)}
    return [n for n in range(count) if n not in chosen], sorted(chosen)


def check_enough(count: int, share: float, batch: int) -> None:
    """Refuse fewer pictures than make a batch once some are held out."""
    training = len(split(count, share)[0])
    if training < batch:
        raise TrainingError(
            f"{count} images leave {training} for training, fewer than a batch of {batch}."
            f" Add images, or use batch={max(1, training)} or less."
        )
