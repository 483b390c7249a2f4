"""Linear steps after the final norm: directions of position removed, and smoothing on the grid.

Tokens of images without content differ only by their position. The directions in which their mean
varies over the grid carry position, in every image; a projection removes them. The idea is that of
INSID3 (CVPR 2026), found there for DINOv3. Both steps are linear: they export as two small products
and a few sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.options import Size

if TYPE_CHECKING:
    from clearvit.backbones.backbone import Backbone

NOISE_IMAGES, BATCH = 16, 4


@dataclass(frozen=True)
class OutputSteps:
    """What happens to the final patch tokens of a backbone."""

    directions: int = 0  # of position to remove; 0 leaves the tokens as they are
    smooth: bool = False  # average each token with its neighbors, weights 1 2 1 along both axes
    seed: int = 0  # of the noise images
    bases: dict[Size, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def apply(self, patches: Tensor, grid: Size, backbone: Backbone) -> Tensor:
        """Change patches (B, N, C) on a grid; `backbone` is the one without these steps."""
        if self.directions:
            patches = remove_directions(patches, self.basis(backbone, grid).to(patches))
        return smooth_grid(patches, grid) if self.smooth else patches

    def basis(self, backbone: Backbone, grid: Size) -> Tensor:
        """Directions of position (k, C) on a grid; computed once per grid, from noise images."""
        height, width = int(grid[0]), int(grid[1])  # numbers also while a graph is traced
        if (height, width) not in self.bases:
            size = (height * backbone.patch[0], width * backbone.patch[1])
            basis = positional_basis(backbone, self.directions, size, seed=self.seed)
            self.bases[height, width] = basis
        return self.bases[height, width]

    def settings(self) -> tuple[object, ...]:
        """What decides the tokens."""
        return self.directions, self.smooth, self.seed


@torch.no_grad()
def positional_basis(
    backbone: Backbone, count: int, size: Size | None = None, *, seed: int = 0
) -> Tensor:
    """Find the directions in which tokens of noise images vary most with their position.

    Args:
        backbone: Any backbone; 16 forward passes are made.
        count: How many directions k, at most the channels and the positions.
        size: (height, width) of the images in pixels; the backbone's own by default. The directions
            depend on it.
        seed: Seed of the noise.

    Returns:
        Orthonormal rows, (k, C), strongest first.
    """
    height, width = backbone.fitting_size(size)
    generator = torch.Generator().manual_seed(seed)
    total: Tensor | float = 0.0
    for _ in range(NOISE_IMAGES // BATCH):
        noise = torch.randn(BATCH, 3, height, width, generator=generator)
        patches = backbone.forward(noise.to(backbone.device, backbone.dtype)).patches
        total = total + patches.float().sum(0)
    mean = torch.as_tensor(total) / NOISE_IMAGES  # (N, C)
    most = min(mean.shape[0] - 1, mean.shape[1])
    if not 1 <= count <= most:
        raise ModelError(f"{count} directions of position; there are 1 to {most} at this size.")
    centered = (mean - mean.mean(0)).double().cpu()
    directions: Tensor = torch.linalg.svd(centered, full_matrices=False)[2]
    return directions[:count].float()


def remove_directions(tokens: Tensor, basis: Tensor) -> Tensor:
    """Project tokens (..., C) onto what is orthogonal to the rows of the basis (k, C)."""
    return tokens - (tokens @ basis.T) @ basis


def smooth_grid(patches: Tensor, grid: Size) -> Tensor:
    """Blur patches (B, N, C) on their grid by the kernel 1 2 1 along rows and columns."""
    maps = F.pad(patches.transpose(1, 2).unflatten(2, grid), (1, 1, 1, 1), mode="replicate")
    rows = maps[:, :, 1:-1] / 2 + (maps[:, :, :-2] + maps[:, :, 2:]) / 4
    both = rows[..., 1:-1] / 2 + (rows[..., :-2] + rows[..., 2:]) / 4
    return both.flatten(2).transpose(1, 2)
