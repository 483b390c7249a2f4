"""Options of `cv.microscope` and `clearvit microscope`."""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.options import Options, Size, option, size_option
from clearvit.views.config import Refine, refine_option, scale_option, views_option


@dataclass(frozen=True)
class MicroscopeConfig(Options):
    """What the page of a microscope holds."""

    size: int | Size | None = size_option("Input")
    limit: int = option(
        100, "Images at most, spread evenly over those given.", panel="Input", minimum=1
    )
    views: int | None = views_option("Input")
    scale: int = scale_option("Input")
    refine: Refine = refine_option("Input")
    layers: tuple[int, ...] = option(
        (),
        "Blocks to store, counted from 0; the output of the last one always is.",
        panel="Page",
        minimum=-512,
        shown="four, where artifacts begin and are strongest, as far as they fit",
    )
    channels: int = option(
        64,
        "Principal components stored of each token; more make the cosines more exact.",
        panel="Page",
        minimum=4,
        maximum=1024,
    )
    megabytes: float = option(
        10.0,
        "Size of the page to aim for: blocks, then keys, queries, values and the attention of"
        " patches are stored as far as they fit; the output tokens always are.",
        panel="Page",
        above=0,
        maximum=2000,
    )
