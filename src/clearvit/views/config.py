"""Options of `cv.denoise`; the cure's teacher and `clearvit tokens --views` take the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clearvit.options import Options, Precision, Size, option, precision_option, size_option

Sampler = Literal["lattice", "whole", "official"]
Kernel = Literal["tent", "box"]
Refine = Literal["none", "image"]

FRACTION = 0.15  # of the grid: how far a view is shifted at most
SAMPLER_HELP = (
    "How views are placed: 'lattice' shifts by fractions of a patch too, 'whole' by whole patches"
    " only, 'official' draws whole patches as PH-Reg's code does."
)


def views_option(panel: str = "Options") -> Any:
    """Declare the views of verbs that take one pass unless asked for more."""
    help = "Shifted and mirrored views to average; each costs a forward pass."
    return option(None, help, panel=panel, minimum=1, shown="1, or scale x scale")


def scale_option(panel: str = "Options") -> Any:
    """Declare how fine the grid is."""
    help = "How many times finer than the model's own grid the tokens are."
    return option(1, help, panel=panel, minimum=1, maximum=16)


def refine_option(panel: str = "Options") -> Any:
    """Declare the last step after gathering."""
    help = "Sharpen the gathered tokens along the edges of the image ('image'), or not."
    return option("none", help, panel=panel)


@dataclass(frozen=True)
class DenoiseConfig(Options):
    """How views are taken and gathered."""

    views: int = option(10, "Views of each image; each costs a forward pass.", minimum=1)
    scale: int = scale_option()
    sampler: Sampler = option("lattice", SAMPLER_HELP)
    fraction: float = option(
        FRACTION, "Largest shift of a view, as a fraction of the grid.", minimum=0, below=1
    )
    kernel: Kernel = option(
        "tent", "Weight of a token by its distance from a cell: 'tent' falls linearly, 'box' not."
    )
    width: float | None = option(
        None,
        "Reach of the kernel, in patches.",
        above=0,
        maximum=4,
        shown="1 up to scale 2, 0.6 beyond",
    )
    refine: Refine = refine_option()
    size: int | Size | None = size_option()
    seed: int = option(0, "Seed of the sampler.", minimum=0)
    batch: int = option(16, "Views per forward pass.", minimum=1)
    precision: Precision = precision_option()
