"""Tokens of many views put back where their patches really are, on a grid of any fineness.

Token i of a view shifted by d pixels has its center at image row (i + 1/2) p + d, for patches of p
pixels; in a mirrored view the column counts from the other side. A cell of the target grid takes
the weighted mean of all tokens near its own center. The weight is separable: a view has two small
matrices R (cells x tokens) and S, and adds R F S^T. A token that looks at padding counts by the
part of its patch that lies inside the image. With whole-patch shifts and the model's own grid, a
tent one patch wide leaves nothing but the token of the same patch: PH-Reg's average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.views.config import Kernel
from clearvit.views.sampling import Views

WIDTH, FINE_WIDTH = 1.0, 0.6  # reach of the kernel in patches, up to scale 2 and beyond


@dataclass(frozen=True)
class Gathered:
    """The mean over views, cell by cell."""

    map: Tensor  # (B, scale * H, scale * W, C)
    weights: Tensor  # (scale * H, scale * W): sum of the weights of all tokens of all views
    variance: Tensor  # (B, scale * H, scale * W): over these tokens, mean over channels


class Gatherer:
    """Adds views one after the other; memory does not grow with their number."""

    def __init__(
        self,
        grid: Size,
        *,
        patch: Size,
        scale: int = 1,
        kernel: Kernel = "tent",
        width: float | None = None,
    ) -> None:
        check_scale(scale, patch)
        self.grid, self.patch, self.kernel = grid, patch, kernel
        self.cells = (grid[0] * scale, grid[1] * scale)
        self.width = width or (WIDTH if scale <= 2 else FINE_WIDTH)
        self.weights = torch.zeros(self.cells)
        self.total: Tensor | None = None
        self.energy: Tensor | None = None

    def add(self, features: Tensor, views: Views) -> None:
        """Add the features (B, n, H, W, C) of n views of B images."""
        for number, ((dy, dx), flip) in enumerate(views.pairs()):
            one = features[:, number].float()
            rows = self._axis(0, dy, False).to(one.device)
            columns = self._axis(1, dx, flip).to(one.device)
            energy = one.square().sum(-1)  # (B, H, W)
            total = _spread(one, rows, columns)
            spread = _spread(energy[..., None], rows, columns)[..., 0]
            self.total = total if self.total is None else self.total + total
            self.energy = spread if self.energy is None else self.energy + spread
            self.weights += torch.outer(rows.sum(1), columns.sum(1)).cpu()

    def result(self) -> Gathered:
        """Give the mean; refuse if no view shows some cell."""
        assert self.total is not None and self.energy is not None
        check_coverage(self.weights)
        weights = self.weights.to(self.total.device)
        mean = self.total / weights[..., None]
        spread = self.energy / weights - mean.square().sum(-1)
        return Gathered(mean, self.weights, spread.clamp(min=0) / mean.shape[-1])

    def _axis(self, axis: int, offset: int, flip: bool) -> Tensor:
        return axis_weights(
            self.grid[axis],
            self.cells[axis],
            patch=self.patch[axis],
            offset=offset,
            flip=flip,
            kernel=self.kernel,
            width=self.width,
        )


def gather(
    features: Tensor,
    views: Views,
    *,
    patch: Size,
    scale: int = 1,
    kernel: Kernel = "tent",
    width: float | None = None,
) -> Gathered:
    """Put the tokens of n views on one grid, `scale` times as fine as theirs.

    Args:
        features: Patch tokens of the views of each image, (B, n, H, W, C).
        views: How the n views were shifted (pixels) and mirrored.
        patch: (height, width) of a patch in pixels.
        scale: Cells per patch and axis, at most the patch's pixels.
        kernel: "tent" falls linearly with the distance to 0 at `width` patches; "box" is constant
            within half of `width`.
        width: Reach in patches; 1 up to scale 2, 0.6 beyond, unless given.
    """
    grid = (features.shape[2], features.shape[3])
    gatherer = Gatherer(grid, patch=patch, scale=scale, kernel=kernel, width=width)
    gatherer.add(features, views)
    return gatherer.result()


def axis_weights(
    tokens: int,
    cells: int,
    *,
    patch: int,
    offset: int,
    flip: bool,
    kernel: Kernel = "tent",
    width: float = WIDTH,
) -> Tensor:
    """Weights (cells, tokens) of a view's tokens on the cells of one axis, each 0..1."""
    length = tokens * patch
    centers = (torch.arange(tokens) + 0.5) * patch
    centers = (length - centers if flip else centers) + offset
    inside = (centers + patch / 2).clamp(max=length) - (centers - patch / 2).clamp(min=0)
    visible = (inside / patch).clamp(min=0)
    at = (torch.arange(cells) + 0.5) * (length / cells)
    distance = (at[:, None] - centers).abs() / (width * patch)
    weight = (1 - distance).clamp(min=0) if kernel == "tent" else (distance <= 0.5).float()
    return weight * visible


def check_scale(scale: int, patch: Size) -> None:
    """Refuse a grid finer than the pixels."""
    if not 1 <= scale <= min(patch):
        raise ModelError(
            f"scale is {scale}; a patch of {patch[0]} x {patch[1]} pixels allows 1 to {min(patch)}."
        )


def check_coverage(weights: Tensor) -> None:
    """Refuse views that leave cells of the target grid without any token."""
    missing = int((weights <= 1e-6).sum())
    if missing:
        raise ModelError(
            f"{missing} of {weights.numel()} cells are in none of the views. Use more views, a"
            " smaller scale or a wider kernel, or add the untouched image, offset (0, 0)."
        )


def _spread(features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute R F S^T for features (B, H, W, C), (B, cells, cells, C)."""
    tall = torch.matmul(rows, features.flatten(2)).unflatten(2, features.shape[2:])
    return torch.matmul(columns, tall)
