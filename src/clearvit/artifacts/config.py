"""Options of `cv.diagnose`, `cv.look` and their commands."""

from __future__ import annotations

from dataclasses import dataclass

from clearvit.options import Options, Size, batch_option, limit_option, option, size_option
from clearvit.views.config import Refine, refine_option, scale_option, views_option


@dataclass(frozen=True)
class DiagnoseConfig(Options):
    """How to look for artifact tokens."""

    size: int | Size | None = size_option("Input")
    limit: int = limit_option(64, "Input")
    batch: int = batch_option(4, "Input")
    quick: bool = option(
        False, "Use 32 images, shift 4 of them and skip the experiments.", panel="Method"
    )
    equivariance: bool = option(
        True, "Measure how features change when images are shifted.", panel="Method"
    )
    shifted: int = option(
        8, "Number of images to shift, three forward passes each.", panel="Method", minimum=1
    )
    experiments: bool = option(
        True,
        "Repeat the experiments of 'Vision Transformers Need Registers' with linear probes.",
        panel="Method",
    )
    seed: int = option(0, "Seed of the bootstrap behind the intervals.", panel="Method", minimum=0)


@dataclass(frozen=True)
class LookConfig(Options):
    """What to draw of the tokens of an image."""

    size: int | Size | None = size_option("Input")
    views: int | None = views_option("Input")
    scale: int = scale_option("Input")
    refine: Refine = refine_option("Input")
    layers: tuple[int, ...] = option(
        (),
        "Blocks whose token norms to draw, counted from 0; -1 is the last.",
        panel="Input",
        minimum=-512,
        shown="five, mostly late ones",
    )
