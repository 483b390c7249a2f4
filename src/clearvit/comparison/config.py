"""Options of `cv.compare` and `clearvit compare`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from clearvit.options import (
    Options,
    Precision,
    Size,
    batch_option,
    limit_option,
    option,
    precision_option,
    size_option,
)
from clearvit.views.config import SAMPLER_HELP, Sampler

CurveOver = Literal["views", "registers"]

QUICK = {"limit": 16, "reference_images": 4, "views": 50, "labeled_limit": 64, "rounds": 5}


@dataclass(frozen=True)
class CompareConfig(Options):
    """How to compare models."""

    size: int | Size | None = size_option("Input", "the first model's")
    limit: int = limit_option(32, "Input")
    labels: Path | None = option(
        None,
        "Folder with one subfolder per class, for the kNN accuracy.",
        panel="Input",
        shown="the images themselves, if they are in class folders",
    )
    labeled_limit: int = option(
        128, "Labelled images at most.", panel="Input", minimum=2, hidden=True
    )
    views: int = option(
        200,
        "Views of each image in the reference average, at most all distinct ones.",
        panel="Measures",
        minimum=1,
    )
    sampler: Sampler = option("lattice", SAMPLER_HELP, panel="Measures", hidden=True)
    reference_images: int = option(
        8, "Images of the reference average.", panel="Measures", minimum=1
    )
    shifted_images: int = option(
        4,
        "Images on which the change with a shift is measured, three forward passes each.",
        panel="Measures",
        minimum=0,
        hidden=True,
    )
    neighbors: int = option(
        1, "Number k of neighbors of the kNN accuracy.", panel="Measures", minimum=1, hidden=True
    )
    rounds: int = option(10, "Rounds of timing.", panel="Measures", minimum=1, hidden=True)
    shown_images: int = option(
        4, "Images drawn with the tokens of every model.", panel="Measures", minimum=0
    )
    structure: bool = option(
        False,
        "Also measure and draw how patches relate to each other: self-similarity, smoothness,"
        " separation of foreground and background, corners.",
        panel="Measures",
    )
    masks: Path | None = option(
        None,
        "Folder of masks (PNG) named as the images, to measure the separation of their classes"
        " with --structure.",
        panel="Measures",
        shown="none",
    )
    quick: bool = option(
        False,
        "Use at most 16 images, 4 of them in a reference of 50 views, 64 labelled images and 5"
        " rounds of timing.",
        panel="Measures",
    )
    batch: int = batch_option(4, "Run")
    seed: int = option(0, "Seed of views and resampling.", panel="Run", minimum=0)
    cache: str | Path | None = option(
        None, "Folder that keeps the reference average for the next run.", hidden=True
    )

    def effective(self) -> CompareConfig:
        """Lower the numbers if it should be quick."""
        if not self.quick:
            return self
        lowered = {name: min(getattr(self, name), most) for name, most in QUICK.items()}
        return replace(self, **lowered)


@dataclass(frozen=True)
class CurveConfig(Options):
    """What a curve runs over."""

    over: CurveOver = option(
        "views",
        "What the curve runs over: the number of 'views' that are averaged, or the number of"
        " 'registers' that a cure adds, which trains one model for each.",
    )
    counts: tuple[int, ...] = option(
        (),
        "Numbers of views or registers, such as 1,4,16.",
        minimum=0,
        maximum=4096,
        shown="1,2,4,8,16,32 views; 0,1,2,4,8,16 registers",
    )
    size: int | Size | None = size_option()
    limit: int = limit_option(16)
    epochs: int = option(2, "Epochs of each cure, with --over registers.", minimum=1)
    precision: Precision = precision_option()
    seed: int = option(0, "Seed of views and trainings.", minimum=0)
