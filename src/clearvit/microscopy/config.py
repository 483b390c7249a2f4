"""Options of `cv.microscope` and `clearvit microscope`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.options import LARGEST_SIDE, Options, Size, limit_option, option, size_option
from clearvit.views.config import Refine, refine_option, scale_option, views_option


@dataclass(frozen=True)
class MicroscopeConfig(Options):
    """What the page of a microscope holds."""

    size: int | Size | None = size_option("Input")
    limit: int = limit_option(100, "Input")
    views: int | None = views_option("Input")
    scale: int = scale_option("Input")
    refine: Refine = refine_option("Input")
    layers: tuple[int, ...] = option(
        (),
        "Blocks to store, counted from 0; the output of the last one is always stored.",
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


@dataclass(frozen=True)
class ServeConfig(Options):
    """What the microscope serves, to whom, and how much of it."""

    images: tuple[Path, ...] = option(
        (),
        "Folders that the page may show, separated by commas; no file outside them is read.",
        panel="Images",
    )
    index: Path | None = option(
        None, "What `clearvit index` wrote, to be searched.", panel="Images", shown="none"
    )
    host: str = option(
        "127.0.0.1",
        "Address to listen on. The default reaches this machine only; with another one, everybody"
        " who reaches it can look at the folders.",
        panel="Server",
    )
    port: int = option(
        8000, "Port to listen on; 0 takes a free one.", panel="Server", minimum=0, maximum=65535
    )
    megabytes: float = option(
        32.0, "Largest image that can be uploaded.", panel="Limits", above=0, maximum=2000
    )
    at_once: int = option(
        4,
        "Requests that are worked on at the same time; their batches are interleaved.",
        panel="Limits",
        minimum=1,
        maximum=64,
    )
    waiting: int = option(
        16,
        "Requests that may wait; further ones are refused and may try again later.",
        panel="Limits",
        minimum=0,
        maximum=1000,
    )
    images_at_once: int = option(
        24, "Images on one page at most.", panel="Limits", minimum=1, maximum=200
    )
    largest: int = option(
        672,
        "Largest side of an image in the network, in pixels.",
        panel="Limits",
        minimum=16,
        maximum=LARGEST_SIDE,
    )
    seconds: float = option(
        30.0,
        "Seconds without data after which a connection is closed.",
        panel="Limits",
        minimum=1,
        maximum=3600,
    )

    def __post_init__(self) -> None:
        """Take one folder without a list around it."""
        given: Any = self.images
        folders = (given,) if isinstance(given, (str, Path)) else given
        object.__setattr__(self, "images", tuple(map(Path, folders)))
        super().__post_init__()
