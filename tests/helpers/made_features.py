"""Patch features with a known object."""

import torch


def two_things(grid=(8, 10), box=(2, 1, 6, 5), noise=0.3):
    """Background of one direction, an object of another; (N, C) features and the object's mask."""
    mask = torch.zeros(grid, dtype=torch.bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    directions = torch.eye(2, 16)
    return directions[mask.flatten().long()] + noise * torch.randn(mask.numel(), 16) / 4, mask
