"""What images share at the same position of the grid.

Natural photos have smooth habits (sky above, objects in the middle) and position embeddings are
smooth too, so a token is compared with its neighbors: x_p minus their median. What remains of this
difference in the mean over images is tied to the position, not to the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.artifacts.outliers import find_outliers

FEWEST_IMAGES = 4  # fewer cannot tell a habit of the network from a coincidence
AGREED = 0.5  # cosine of what two halves of the images share
STRONG = 0.1  # shared over varying energy; below this, positions hardly differ


@dataclass(frozen=True)
class PositionStats:
    """What the final tokens of several images share at each of N positions."""

    ratio: Tensor  # (N,) energy of the shared difference over that of the varying one
    agreement: Tensor  # (N,) cosine between the shared differences of two halves of the images
    images: int

    def find(self) -> Tensor | None:
        """Mark the positions (N,) bool that stand out of the grid, if there are some."""
        if self.images < FEWEST_IMAGES:
            return None
        scores = (self.ratio + STRONG)[None]
        # one position is enough, because the two halves of the images must also agree on it
        found = find_outliers(scores, "high", min_count=1, max_p=0.01)
        if found is None:
            return None
        mask = found.mask(scores)[0] & (self.agreement >= AGREED)
        return mask if mask.any() else None


class PositionSums:
    """Running sums over images, so that memory does not grow with their number."""

    def __init__(self) -> None:
        self.images = 0
        self.halves: list[Tensor] = []  # sums over every other image, (N, C) each
        self.energy = torch.zeros(())  # (N,)

    def add(self, patches: Tensor, grid: tuple[int, int]) -> None:
        """Take in the final tokens of a batch, (B, N, C)."""
        difference = subtract_neighbors(patches, grid)
        if not self.halves:
            self.halves = [torch.zeros_like(difference[0], dtype=torch.float64) for _ in range(2)]
        for image in difference:
            self.halves[self.images % 2] += image
            self.images += 1
        self.energy = self.energy.to(difference.device) + difference.square().sum(-1).sum(0)

    def result(self) -> PositionStats:
        """Compare the shared with the varying part, without the bias of few images."""
        count = self.images
        shared = ((self.halves[0] + self.halves[1]) / count).square().sum(-1)
        varying = (self.energy / count - shared).clamp(min=0) * count / max(count - 1, 1)
        unbiased = (shared - varying / count).clamp(min=0)
        agreement = F.cosine_similarity(self.halves[0], self.halves[1], dim=-1)
        ratio = unbiased / varying.clamp(min=1e-12)
        return PositionStats(ratio.float().cpu(), agreement.float().cpu(), count)


def subtract_neighbors(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """Subtract from every token the median of its neighbors, channel by channel, (B, N, C).

    The median, because an artifact among the (up to eight) neighbors must not spread to healthy
    tokens. A grid one cell wide has no difference at all.
    """
    if min(grid) < 2:
        return torch.zeros_like(patches)
    image = patches.transpose(1, 2).unflatten(2, grid)
    around = F.pad(image, (1, 1, 1, 1), mode="reflect")  # at an edge, inner neighbors count twice
    height, width = grid
    offsets = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    stack = torch.stack([around[:, :, y : y + height, x : x + width] for y, x in offsets])
    middle = stack.median(dim=0).values
    for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1)):  # at a corner one would count four times
        inner_y, inner_x = (1 if y == 0 else -2), (1 if x == 0 else -2)
        three = [image[..., inner_y, x], image[..., y, inner_x], image[..., inner_y, inner_x]]
        middle[..., y, x] = torch.stack(three).median(dim=0).values
    difference: Tensor = image - middle
    return difference.flatten(2).transpose(1, 2)
