"""Tokens fine and clean enough to point at parts: a few shifted views on a grid twice as fine.

An index keeps a coarse grid of every image, enough to rank by and too coarse to see an eye. So the
two images of an explanation are read again: four views, shifted by half patches, gathered on twice
the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.options import Size
from clearvit.retrieval.matching.pooling import Grid
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoise import denoise_pixels, views_for

VIEWS = DenoiseConfig(views=4, scale=2)


@dataclass(frozen=True)
class FineTokens:
    """Patch tokens of one image."""

    patches: Tensor  # (N, C), float32
    grid: Grid


@torch.no_grad()
def extract_fine(backbone: Backbone, image: Image.Image, size: Size) -> FineTokens:
    """Extract tokens of an image on a fine grid.

    Args:
        backbone: Any backbone; for a pruned one the dense model it was made of is used, since a
            pruned model has no token for some patches.
        image: An RGB image.
        size: (height, width) in pixels, as the index was made with.
    """
    dense = getattr(backbone, "dense", None)
    asked = dense if isinstance(dense, Backbone) else backbone
    pixels = asked.preprocessing(image, size)[None].to(asked.device, asked.dtype)
    small = min(asked.grid_of(size)) < 2
    if asked.scale > 1 or small:  # a fine grid already, or too few patches to shift
        tokens = asked.forward(pixels)
    else:
        tokens = denoise_pixels(asked, pixels, views_for(asked, pixels, VIEWS), VIEWS)
    return FineTokens(tokens.patches[0].float().cpu(), tokens.grid)
