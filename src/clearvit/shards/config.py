"""Options of `cv.save_tokens` and `clearvit tokens`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clearvit.options import (
    Engine,
    Options,
    Size,
    batch_option,
    decoders_option,
    engine_option,
    option,
    overwrite_option,
    size_option,
    strict_option,
)
from clearvit.views.config import Refine, refine_option, scale_option, views_option


@dataclass(frozen=True)
class TokenConfig(Options):
    """How to write the tokens of a folder."""

    size: int | Size | None = size_option()
    layers: tuple[int, ...] = option(
        (), "Blocks to keep beside the final tokens, counted from 0; -1 is the last.", minimum=-512
    )
    norm: bool = option(True, "Apply the final norm, to the kept blocks too.")
    views: int | None = views_option()
    scale: int = scale_option()
    refine: Refine = refine_option()
    dtype: Literal["float16", "float32"] = option("float16", "Number format on disk.")
    batch: int = batch_option(16)
    shard: int = option(64, "Images per file, rounded up to whole batches.", minimum=1)
    decoders: int | None = decoders_option()
    strict: bool = strict_option()
    overwrite: bool = overwrite_option("Options")
    engine: Engine = engine_option()
