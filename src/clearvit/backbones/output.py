"""Linear steps after the final norm: position removed, smoothing on the grid, a finer grid.

Tokens of images without content differ only by their position. The directions in which their mean
varies over the grid carry position, in every image; a projection removes them. The idea is that of
INSID3 (CVPR 2026), found there for DINOv3. Both steps are linear: they export as two small products
and a few sums.

The head for fine tokens is linear and convolutional, so it works at any size. To the tokens
upsampled bilinearly it adds a part of its own for each of the four fine cells of a patch, and what
the token's surroundings say. With all weights zero it is bilinear upsampling.
`clearvit.cures.fine_head` fits it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from clearvit.backbones.blueprint import load_exactly
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError
from clearvit.files import read_tensors, written_whole
from clearvit.options import Size
from clearvit.schema import Rule, table, whole

if TYPE_CHECKING:
    from clearvit.backbones.backbone import Backbone

NOISE_IMAGES, BATCH = 16, 4
SCALE = 2  # of the fine grid
CELLS = SCALE * SCALE  # of a patch
FINE_HEAD = "fine_head.safetensors"  # beside the weights of a saved backbone
FINE_RULE: Rule = table({"channels": whole(1, 1 << 16), "scale": whole(SCALE, SCALE)})


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


class FineHead(nn.Module):
    """Patch tokens on a grid twice as fine, from the patch tokens of one forward pass.

    Attributes:
        channels: Channels C of the tokens.
        scale: How many times finer the grid is.
    """

    scale = SCALE

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.around = nn.Linear(2 * channels, channels, bias=False)  # of the blurred tokens
        self.split = nn.Linear(channels, CELLS * channels)  # channel by channel, then cell by cell
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, maps: Tensor) -> Tensor:
        """Map tokens (B, C, H, W) to tokens (B, C, 2 H, 2 W)."""
        tokens = maps.permute(0, 2, 3, 1)
        blurred = torch.cat(blur_twice(maps), 1).permute(0, 2, 3, 1)
        smooth = upsample((tokens + self.around(blurred)).permute(0, 3, 1, 2))
        return smooth + F.pixel_shuffle(self.split(tokens).permute(0, 3, 1, 2), SCALE)

    def refine(self, tokens: Tokens) -> Tokens:
        """Replace the patches of some tokens by fine ones; prefix tokens stay as they are."""
        maps = tokens.patches.transpose(1, 2).unflatten(2, tokens.grid)
        found = self(maps.to(self.split.weight.dtype))
        return replace(
            tokens,
            patches=found.flatten(2).transpose(1, 2).to(tokens.patches.dtype),
            grid=(self.scale * tokens.grid[0], self.scale * tokens.grid[1]),
            scale=self.scale,
        )

    def settings(self) -> tuple[object, ...]:
        """What decides the fine tokens: the channels, and a hash of the weights."""
        digest = hashlib.sha256()
        for tensor in self.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return self.channels, digest.hexdigest()

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the weights to a directory; returns what JSON has to hold beside them."""
        state = {key: t.detach().cpu().contiguous() for key, t in self.state_dict().items()}
        with written_whole(folder / FINE_HEAD) as temporary:
            save_file(state, temporary, metadata={"format": "pt"})
        return {"channels": self.channels, "scale": self.scale}


def load_head(folder: Path, config: Mapping[str, Any], channels: int) -> FineHead:
    """Load what `FineHead.save` wrote, for tokens of so many channels."""
    if config["channels"] != channels:
        raise ModelError(
            f"'{folder / FINE_HEAD}' is a head for tokens of {config['channels']} channels, not"
            f" {channels}."
        )
    state = read_tensors(folder / FINE_HEAD, ModelError)
    head = FineHead(channels)
    load_exactly(head, state, str(folder / FINE_HEAD))
    return head.eval().requires_grad_(False)


def upsample(maps: Tensor) -> Tensor:
    """Upsample maps (B, C, H, W) bilinearly to the fine grid."""
    return F.interpolate(maps, scale_factor=SCALE, mode="bilinear", align_corners=False)


def blur_twice(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Blur maps (B, C, H, W) by the kernel 1 2 1 along both axes, once and twice."""
    grid = (maps.shape[2], maps.shape[3])
    once = smooth_grid(maps.flatten(2).transpose(1, 2), grid)
    twice = smooth_grid(once, grid)
    return once.transpose(1, 2).unflatten(2, grid), twice.transpose(1, 2).unflatten(2, grid)
