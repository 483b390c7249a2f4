"""One photo, before and after: tokens as colors, norms inside the network, distance to clean."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.report.figure import NORM_LIMITS, Panel, draw_panels
from clearvit.report.pca import PCA
from clearvit.views.denoise import denoise


def draw_strip(
    raw: Backbone, cured: Backbone, image: Image.Image, *, views: int = 32, scale: int = 4
) -> Figure:
    """Draw two rows of four panels.

    Above: the photo, its tokens of one pass, those of many views, and on a finer grid, in one
    color space. Below: norms in the block where those of the raw model stand out most, and the
    cosine distance of one pass to the raw model's many-view average, before and after the cure.
    """
    plain, after = raw.tokens(image), cured.tokens(image)
    clean, fine = (denoise(raw, image, views=views, scale=s, batch=8) for s in (1, scale))
    basis, aspect = PCA.fit_foreground(fine.map[0].float()), image.height / image.width

    def colors(title: str, tokens: Tokens) -> Panel:
        shown = basis.apply(tokens.patches[0].float()).reshape(*tokens.grid, 3).numpy()
        return Panel(title, shown, note=f"{tokens.grid[0]} x {tokens.grid[1]}", aspect=aspect)

    above = [
        Panel("photo", np.asarray(image), note=" "),
        colors("one pass", plain),
        colors(f"{views} views", clean),
        colors(f"{views} views, {scale} x finer", fine),
    ]
    below = []
    ratios = [_norm_ratios(model, image) for model in (raw, cured)]
    block = int(np.argmax([one.max() for one in ratios[0]]))
    for title, one in zip(("norms, raw", "norms, cured"), ratios, strict=True):
        note = f"block {block}; largest {one[block].max():.1f} x median"
        below.append(Panel(title, None, one[block], note, limits=NORM_LIMITS, aspect=aspect))
    errors = [_distance(tokens.patches[0], clean.patches[0]) for tokens in (plain, after)]
    limits = (0.0, max(float(np.quantile(errors[0], 0.98)), 1e-6))
    for name, error in zip(("raw", "cured"), errors, strict=True):
        title, note = f"distance to clean, {name}", f"mean {error.mean():.3f}"
        values = error.reshape(plain.grid)
        below.append(Panel(title, None, values, note, limits=limits, aspect=aspect))
    return draw_panels([above, below])


def _norm_ratios(model: Backbone, image: Image.Image) -> list[NDArray[np.float32]]:
    """Give norms of patches by block, each in units of its median, (H, W)."""
    blocks = list(range(model.depth))
    seen = model.tokens(image, layers=blocks, norm=False).layers
    found = []
    for block in blocks:
        norms = seen[block].norms[0].float()
        found.append((norms / norms.median()).reshape(seen[block].grid).numpy())
    return found


def _distance(one: Tensor, other: Tensor) -> NDArray[np.float32]:
    """Give cosine distances of tokens (N, C)."""
    from torch.nn.functional import cosine_similarity

    return (1 - cosine_similarity(one.float(), other.float(), dim=1)).numpy()
