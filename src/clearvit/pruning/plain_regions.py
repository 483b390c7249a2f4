"""Plain regions enter the network as larger patches (the idea of APT, here without training).

A cell is 2 x 2 patches. Those with the least variance of their pixels become one token each, before
the first block: the patch of the image at half its size, at the mean of the four positions. At the
end they are put back on the full grid by interpolation between cells. What pixels look alike says
nothing about what a network needs, but it is known before anything is computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.vit import VitBackbone
from clearvit.options import Size
from clearvit.pruning.reduction import KeptTokens
from clearvit.pruning.selection import gather_rows, select_top

CELL = 4  # patches


def merge_plain_cells(
    backbone: VitBackbone, pixels: Tensor, sequence: Tensor, grid: Size, count: int
) -> tuple[Tensor, KeptTokens]:
    """Replace the plainest cells by one token each until `count` patches are left.

    Args:
        backbone: The dense model.
        pixels: Normalized, (B, 3, height, width).
        sequence: What would enter the first block, (B, P + N, C).
        grid: (H, W) in patches; of an odd number the last row or column stays as it is.
        count: Patches to be left; N minus a multiple of 3.

    Returns:
        The shorter sequence (B, P + count, C), and which patches it holds.
    """
    prefix, patches = sequence.split([len(backbone.prefix_names), grid[0] * grid[1]], dim=1)
    cells = select_plain(pixels, backbone.patch, (patches.shape[1] - count) // (CELL - 1))
    columns = grid[1] // 2
    first = cells // columns * 2 * grid[1] + cells % columns * 2  # its upper left patch
    others = torch.cat([first + 1, first + grid[1], first + grid[1] + 1], dim=1)
    everyone = torch.arange(patches.shape[1], device=first.device).expand(len(first), -1)
    leader = everyone.scatter(1, others, first.repeat(1, CELL - 1))
    stays = torch.ones_like(leader).scatter(1, others, 0)
    positions = select_top(stays.float(), count)  # exactly `count` are 1
    sizes = torch.ones_like(leader, dtype=torch.float32).scatter(1, first, float(CELL))
    large = gather_rows(embed_cells(backbone, pixels, grid), cells)
    mixed = patches.scatter(1, first[..., None].expand_as(large), large.to(patches.dtype))
    kept = KeptTokens(
        positions=positions,
        assignment=(stays.cumsum(1) - 1).gather(1, leader),
        sizes=sizes.gather(1, positions),
    )
    return torch.cat([prefix, gather_rows(mixed, positions)], dim=1), kept


def select_plain(pixels: Tensor, patch: Size, count: int) -> Tensor:
    """Pick the cells with the least variance of pixels, mean over channels; indices (B, count)."""
    sides = (2 * patch[0], 2 * patch[1])
    mean = F.avg_pool2d(pixels.float(), sides)
    variance = (F.avg_pool2d(pixels.float().square(), sides) - mean.square()).mean(1)
    return variance.flatten(1).topk(count, dim=1, largest=False).indices


def embed_cells(backbone: VitBackbone, pixels: Tensor, grid: Size) -> Tensor:
    """Embed every cell as one patch of the image at half its size, (B, H/2 * W/2, C)."""
    rows, columns = grid[0] // 2, grid[1] // 2
    height, width = 2 * rows * backbone.patch[0], 2 * columns * backbone.patch[1]
    patches = backbone.embed_patches(F.avg_pool2d(pixels[:, :, :height, :width], 2))
    table = backbone.add_positions(patches.new_zeros(1, grid[0] * grid[1], patches.shape[-1]), grid)
    positions = table[:, len(backbone.prefix_names) :].transpose(1, 2).unflatten(2, grid)
    halved = F.avg_pool2d(positions[:, :, : 2 * rows, : 2 * columns], 2)
    embedded: Tensor = backbone.network.norm_pre(patches + halved.permute(0, 2, 3, 1))
    return embedded.flatten(1, 2)


def smooth_cells(patches: Tensor, kept: KeptTokens, grid: Size) -> Tensor:
    """Interpolate the patches of merged cells between the means of all cells, (B, N, C)."""
    maps = patches.transpose(1, 2).unflatten(2, grid)
    even = F.pad(maps, (0, grid[1] % 2, 0, grid[0] % 2), mode="replicate")
    means = F.avg_pool2d(even, 2)
    smooth = F.interpolate(means, scale_factor=2, mode="bilinear", align_corners=False)
    smooth = smooth[:, :, : grid[0], : grid[1]].flatten(2).transpose(1, 2)
    merged = kept.sizes.gather(1, kept.assignment) > 1
    return torch.where(merged[..., None], smooth, patches)
