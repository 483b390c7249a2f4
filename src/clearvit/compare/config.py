"""What can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from clearvit.errors import ModelError

LEAST = {
    "limit": 1,
    "shifted": 0,
    "reference_images": 1,
    "reference_views": 1,
    "photos": 0,
    "labelled": 2,
    "neighbours": 1,
    "repeats": 1,
    "batch": 1,
}


@dataclass(frozen=True)
class CompareConfig:
    """Options of `compare` and of `clearvit compare`."""

    size: int | tuple[int, int] | None = None  # pixels, for all models; None is the first's own
    limit: int = 32  # images, spread evenly over what is given
    shifted: int = 4  # of these, for the equivariance, three passes each
    reference_images: int = 8  # of these, averaged over many views
    reference_views: int = 200  # of each; all distinct views if there are no more
    photos: int = 4  # of these, drawn
    labels: str | Path | None = None  # a folder of class folders; else the images, if they are one
    labelled: int = 128  # labelled images at most
    neighbours: int = 1  # that vote on the class
    repeats: int = 10  # rounds of timing
    batch: int = 4  # images per forward pass
    quick: bool = False  # 16 images, 4 of them over 50 views, 64 labelled ones, 5 rounds
    cache: str | Path | None = None  # folder that keeps the reference for the next run
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ModelError(f"{name} is {getattr(self, name)}; give at least {least}.")

    def effective(self) -> CompareConfig:
        """Lower the numbers if it should be quick."""
        if not self.quick:
            return self
        return replace(
            self,
            limit=min(self.limit, 16),
            reference_images=min(self.reference_images, 4),
            reference_views=min(self.reference_views, 50),
            labelled=min(self.labelled, 64),
            repeats=min(self.repeats, 5),
        )
