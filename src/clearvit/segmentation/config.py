"""Options of `cv.segment` and `clearvit segment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clearvit.options import (
    Engine,
    Options,
    Size,
    batch_option,
    engine_option,
    option,
    size_option,
    strict_option,
)
from clearvit.views.config import views_option

Method = Literal["prototypes", "knn", "probe", "mixed"]
MethodOption = Literal["auto", "prototypes", "knn", "probe", "mixed"]
Unlabelled = Literal["auto", "background", "ignore"]
RefineOption = Literal["auto", "none", "image"]


@dataclass(frozen=True)
class SegmentConfig(Options):
    """How masks are made from examples, and what is written."""

    method: MethodOption = option(
        "auto",
        "Classifier of the patches: class prototypes, nearest labelled patches (knn), a linear"
        " probe, or mixed, the average of probe and prototypes; auto takes the best on held-out"
        " examples.",
        panel="Method",
    )
    unlabelled: Unlabelled = option(
        "auto",
        "Meaning of pixels without a label: background, or nothing; auto is background, or nothing"
        " where there are strokes.",
        panel="Method",
    )
    scale: int | None = option(
        None,
        "How many times finer than the model's own grid the tokens are; costs scale² passes.",
        panel="Features",
        minimum=1,
        maximum=16,
        shown="2 where it helps on the examples, else 1",
    )
    views: int | None = views_option("Features")
    refine: RefineOption = option(
        "auto",
        "Sharpen masks along the edges of the image; auto does where it helps on the examples.",
        panel="Features",
    )
    size: int | Size | None = size_option("Features")
    batch: int = batch_option(8, "Run")
    engine: Engine = engine_option("Run")
    strict: bool = strict_option("Run")
    coco: bool = option(False, "Write all masks as one COCO JSON too.", panel="Output")
    page: bool = option(
        True, "Write a page of the least certain masks, to look at first.", panel="Output"
    )
    overwrite: bool = option(
        False, "Make every mask again, also those that were edited by hand.", panel="Output"
    )
