"""Which patches were kept at each stage, drawn on the images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from clearvit.backbones.backbone import Images
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError
from clearvit.images import find_images, read_image
from clearvit.options import Size
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.report.figure import Panel, draw_panels, save_figure

SHOWN = 480  # pixels of the longer side of a drawn image
DARK = 0.22  # brightness that is left of a dropped patch
CAPTION = (
    "Full color: patches still in the sequence when the named block begins. Dark: removed before"
    " it, or merged into one of the others."
)


def draw_kept(
    backbones: Sequence[PrunedBackbone],
    images: Images,
    *,
    out: str | Path,
    size: int | Size | None = None,
) -> list[Path]:
    """Draw every image with the patches that each model keeps at each of its stages.

    Args:
        backbones: Pruned models, one row of the figure each.
        images: As `Backbone.tokens` takes them, except tensors.
        out: Directory for one PNG per image.
        size: Pixels of the forward pass; each model's own by default.
    """
    if not backbones:
        raise ModelError("only pruned models have patches to draw; prune one: cv.prune(backbone).")
    if isinstance(images, torch.Tensor):
        raise ModelError("pixels are normalized already; give paths or PIL images to draw.")
    single = (images,) if isinstance(images, Image.Image) else images
    paths = []
    for number, found in enumerate(find_images(single)):
        image = read_image(found.source)
        rows = [_row(one, one.tokens(image, size=size), image) for one in backbones]
        models = ", ".join(dict.fromkeys(one.dense.name for one in backbones))
        title = f"{Path(found.name).name}: {models}"
        figure = draw_panels(rows, title=title, caption=CAPTION)
        name = f"{number:03d}-{Path(found.name).stem}-kept.png"
        paths.append(save_figure(figure, Path(out) / name))
    return paths


def _row(backbone: PrunedBackbone, tokens: Tokens, image: Image.Image) -> list[Panel]:
    total = tokens.grid[0] * tokens.grid[1]
    note = f"{total} patches, {backbone.plan.scorer or 'predictors'}"
    fractions = ", ".join(f"{part:.2g}" for part in backbone.plan.keep)
    panels = [Panel(f"keep {fractions}", image=_thumbnail(image), note=note)]
    for stage in backbone.plan.stages:
        mask = tokens.kept_stages[stage][0].cpu().numpy().reshape(tokens.grid)
        note = f"{int(mask.sum())} of {total} ({100 * mask.mean():.0f} %)"
        panels.append(
            Panel(f"block {stage}", image=darken_dropped(_thumbnail(image), mask), note=note)
        )
    return panels


def darken_dropped(image: NDArray[np.uint8], kept: NDArray[np.bool_]) -> NDArray[Any]:
    """Darken the dropped patches of an image (height, width, 3) in 0..1; kept is (H, W)."""
    height, width = image.shape[:2]
    rows = np.arange(height) * kept.shape[0] // height
    columns = np.arange(width) * kept.shape[1] // width
    shown = kept[rows[:, None], columns[None, :], None]
    bright = image.astype(np.float64) / 255
    return np.where(shown, bright, DARK * bright.mean(axis=2, keepdims=True))


def _thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    small = image.copy()
    small.thumbnail((SHOWN, SHOWN))
    return np.asarray(small)
