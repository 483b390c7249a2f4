"""`cv.denoise`: clean tokens, and finer ones, from many views of each image; no training."""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone, Images
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError
from clearvit.options import with_options
from clearvit.precision import autocast, uses_bf16
from clearvit.views.config import DenoiseConfig
from clearvit.views.gathering import Gatherer, check_coverage, check_scale
from clearvit.views.guidance import denormalize, refine_by_image
from clearvit.views.sampling import Views, sample_views
from clearvit.views.shifting import apply_view, white_of


@with_options(DenoiseConfig)
def denoise(
    backbone: Backbone,
    images: Images,
    *,
    views: int | Views | None = None,
    config: DenoiseConfig,
) -> Tokens:
    """Gather the final tokens of several shifted and mirrored views of each image on one grid.

    Patches are averaged over the views that show them; what a shift uncovers is white. Prefix
    tokens are averaged over all views. Memory does not grow with the number of views. For a folder
    too large for memory: `cv.save_tokens(..., views=10, scale=2)`.

    Args:
        backbone: Any backbone; each image costs as many forward passes as there are views.
        images: Whatever `backbone.tokens` takes.
        views: How many, or which (`clearvit.views.Views`).
        config: All options at once, instead of keywords.

    Returns:
        Tokens with `grid` = scale x the model's grid, `scale`, `counts` (the weight of all tokens
        behind each cell, (H, W)) and `variance` over these tokens, mean over channels, (B, N).
    """
    parts = []
    with torch.no_grad():
        for pixels in backbone.pixels(images, size=config.size, batch=config.batch):
            chosen = views_for(backbone, pixels, config, views)
            for some in pixels.split(max(1, config.batch // len(chosen))):
                parts.append(denoise_pixels(backbone, some, chosen, config))
    return Tokens.concatenate(parts)


def views_for(
    backbone: Backbone, pixels: Tensor, config: DenoiseConfig, views: int | Views | None = None
) -> Views:
    """Choose the views for images of this size, and check before any pass that they suffice."""
    if backbone.scale > 1:
        raise ModelError(
            f"'{backbone.name}' gives a fine grid already. Take views of the model it was made of."
        )
    grid = backbone.grid_of((pixels.shape[2], pixels.shape[3]))
    if min(grid) < 2:
        raise ModelError(f"an image of {grid[0]} x {grid[1]} patches is too small for views.")
    check_scale(config.scale, backbone.patch)
    if not isinstance(views, Views):
        count = config.views if views is None else views
        if count < config.scale**2:
            raise ModelError(
                f"{count} views are too few for scale {config.scale}: between them they must show"
                f" every fine cell. Use at least {config.scale**2} views, or a smaller scale."
            )
        views = sample_views(
            grid,
            count,
            patch=backbone.patch,
            sampler=config.sampler,
            scale=config.scale,
            fraction=config.fraction,
            seed=config.seed,
        )
    gatherer = _gatherer(backbone, grid, config)
    gatherer.add(torch.zeros(1, len(views), *grid, 1), views)
    check_coverage(gatherer.weights)
    return views


def denoise_pixels(
    backbone: Backbone, pixels: Tensor, views: Views, config: DenoiseConfig
) -> Tokens:
    """Gather the tokens of the views of images (B, 3, height, width), normalized."""
    grid = backbone.grid_of((pixels.shape[2], pixels.shape[3]))
    white, gatherer = white_of(backbone.preprocessing), _gatherer(backbone, grid, config)
    prefix: Tensor | float = 0.0
    half = uses_bf16(pixels.device, config.precision)
    step = max(1, config.batch // len(pixels))
    for start in range(0, len(views), step):
        some = views[start : start + step]
        shown = [apply_view(pixels, offset, flip, white) for offset, flip in some.pairs()]
        with autocast(pixels.device, half):
            tokens = backbone.forward(torch.stack(shown, 1).flatten(0, 1))
        split = (len(pixels), len(some))
        with autocast(pixels.device, False):  # gather in float32, whoever calls
            prefix = prefix + tokens.prefix.float().unflatten(0, split).sum(1)
            gatherer.add(tokens.patches.unflatten(0, split).unflatten(2, grid), some)
    gathered = gatherer.result()
    patches = gathered.map.flatten(1, 2)
    if config.refine == "image":
        image = denormalize(pixels.float(), backbone.preprocessing)
        maps = refine_by_image(gathered.map.permute(0, 3, 1, 2), image, gatherer.cells)
        patches = maps.flatten(2).transpose(1, 2)
    return Tokens(
        patches=patches,
        prefix=torch.as_tensor(prefix) / len(views),
        grid=gatherer.cells,
        prefix_names=backbone.prefix_names,
        scale=config.scale,
        counts=gathered.weights,
        variance=gathered.variance.flatten(1),
    )


def _gatherer(backbone: Backbone, grid: tuple[int, int], config: DenoiseConfig) -> Gatherer:
    return Gatherer(
        grid,
        patch=backbone.patch,
        scale=config.scale,
        kernel=config.kernel,
        width=config.width,
    )
