"""Average the tokens of shifted and mirrored views: clean features without training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone, Images
from clearvit.backbones.preprocessing import Preprocessing, Size
from clearvit.backbones.tokens import Tokens
from clearvit.cure.views import (
    FRACTION,
    Views,
    apply_view,
    brought_back,
    lattice_views,
    official_views,
)
from clearvit.errors import ModelError, closest

Sampler = Literal["lattice", "official"]
SAMPLERS = {"lattice": lattice_views, "official": official_views}


def denoise(
    backbone: Backbone,
    images: Images,
    *,
    views: int | Views = 10,
    sampler: Sampler = "lattice",
    fraction: float = FRACTION,
    size: int | Size | None = None,
    seed: int = 0,
    batch: int = 16,
) -> Tokens:
    """Average the final tokens of several views of each image, patch by patch.

    A patch is averaged over the views that show it; what a shift uncovers is white. Prefix tokens
    are averaged over all views. Memory does not grow with the number of views.

    Args:
        backbone: Any backbone; each image costs as many forward passes as there are views.
        images: Whatever `backbone.tokens` takes.
        views: How many, or which.
        sampler: "lattice" (ours, closer to the average of all views) or "official" (PH-Reg's).
        fraction: Largest shift, as a share of the grid.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        seed: Of the sampler.
        batch: Views per forward pass.

    Returns:
        Tokens with `counts`, the views that show each patch (H, W), and `variance`, the variance
        of a patch over its views, mean over channels, (B, N).
    """
    if sampler not in SAMPLERS:
        raise ModelError(
            f"sampler is '{sampler}'; use lattice or official.{closest(sampler, SAMPLERS)}"
        )
    parts = []
    with torch.no_grad():
        for pixels in backbone.pixels(images, size=size, batch=batch):
            grid = (pixels.shape[2] // backbone.patch[0], pixels.shape[3] // backbone.patch[1])
            chosen = views
            if isinstance(chosen, int):
                chosen = SAMPLERS[sampler](grid, chosen, fraction=fraction, seed=seed)
            parts += [average(backbone, picture[None], chosen, grid, batch) for picture in pixels]
    return Tokens.concatenate(parts)


def average(
    backbone: Backbone, picture: Tensor, views: Views, grid: tuple[int, int], batch: int
) -> Tokens:
    """Average the tokens of the views of one picture (1, 3, height, width)."""
    counts = views.counts(grid).to(picture.device)
    if not bool((counts > 0).all()):
        raise ModelError(
            f"{int((counts == 0).sum())} patches are in none of the {len(views)} views. Add the"
            " untouched picture, offset (0, 0), or use more views."
        )
    white = white_of(backbone.preprocessing)
    total = torch.zeros(*grid, backbone.width, device=picture.device)
    energy = torch.zeros(grid, device=picture.device, dtype=torch.float64)
    prefix = torch.zeros((), device=picture.device)
    pairs = [
        ((dy, dx), bool(f)) for (dy, dx), f in zip(views.offsets.tolist(), views.flips, strict=True)
    ]
    for start in range(0, len(pairs), batch):
        chunk = pairs[start : start + batch]
        shown = [apply_view(picture, offset, flip, backbone.patch, white) for offset, flip in chunk]
        tokens = backbone.forward(torch.cat(shown))
        prefix = prefix + tokens.prefix.float().sum(0, keepdim=True)
        features = tokens.patches.float().unflatten(1, grid)
        for (offset, flip), feature in zip(chunk, features, strict=True):
            place, inside = brought_back(feature, offset, flip)
            total[place] += inside
            energy[place] += inside.double().square().sum(-1)
    mean = total / counts[..., None]
    spread = (energy / counts - mean.double().square().sum(-1)).clamp(min=0) / backbone.width
    return Tokens(
        patches=mean.flatten(0, 1)[None],
        prefix=prefix / len(views),
        grid=grid,
        prefix_names=backbone.prefix_names,
        counts=counts,
        variance=spread.float().flatten()[None],
    )


def white_of(preprocessing: Preprocessing) -> Tensor:
    """White as the network sees it, (3,)."""
    return (1 - torch.tensor(preprocessing.mean)) / torch.tensor(preprocessing.std)
