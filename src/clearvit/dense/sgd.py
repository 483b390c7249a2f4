"""The linear probe trained step by step: batch norm and 1 x 1 convolution, AdamW, poly schedule.

`live_batches` runs the network on augmented crops, which is the recipe of the paper and needs a GPU
for its 20 000 iterations. `cached_batches` trains on tokens from disk, without augmentation.
`fit_fast` asks for the classes of cells instead of pixels, in fewer and larger steps. A convex fit
without the batch norm's learned scales would need no steps at all, and ends points lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.dense.augment import augmented
from clearvit.dense.features import Features, as_map
from clearvit.dense.linear import LinearHead, head_of
from clearvit.dense.patches import patch_labels, resized_nearest
from clearvit.dense.splits import VOID, MaskSplit, read_photo
from clearvit.errors import ImageError

BATCH, RATE, DECAY, POWER = 8, 1e-3, 1e-4, 0.9
CELLS = 2  # along a patch, of the fast probe: its outputs are bilinear, pixels would tell no more
FAST_STEPS, FAST_RATE = 1000, 2e-3
PASSES = 8  # of the fast probe through many images
Batch = tuple[Tensor, Tensor]
"""Tokens (B, C, H, W), and classes of pixels (B, height, width) or of cells (B, K, height, width).

Classes of cells are shares that sum to the part of the cell that is not void.
"""


def fit_steps(
    batches: Iterator[Batch], *, classes: int, steps: int, rate: float = RATE, seed: int = 0
) -> LinearHead:
    """Train a head on batches, with cross-entropy at the resolution of the labels.

    Args:
        batches: Endless.
        classes: Number of outputs K.
        steps: Iterations.
        rate: Learning rate of the first step.
        seed: Of the initial weights.
    """
    tokens, labels = next(batches)
    known = torch.zeros((), device=tokens.device)
    norm, conv = new_head(tokens.shape[1], classes, seed=seed, device=tokens.device)
    solver = torch.optim.AdamW([*norm.parameters(), *conv.parameters()], rate, weight_decay=DECAY)
    poly = torch.optim.lr_scheduler.LambdaLR(
        solver, lambda i: (1 - min(i, steps - 1) / steps) ** POWER
    )
    with torch.enable_grad():
        for step in range(steps):
            if step:
                tokens, labels = next(batches)
            scores = conv(norm(tokens))
            scores = F.interpolate(scores, labels.shape[-2:], mode="bilinear", align_corners=False)
            total, count = cross_entropy(scores, labels)
            known += count
            solver.zero_grad()
            (total / count.clamp(min=1)).backward()  # a batch may be all void
            solver.step()
            poly.step()
    if not known:
        raise ImageError("every labelled pixel is void; there is nothing to learn from.")
    return head_of(norm, conv)


def cross_entropy(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy of what is not void, and count it.

    Args:
        scores: (B, K, height, width).
        labels: Of pixels (B, height, width) or of cells (B, K, height, width), see `Batch`.
    """
    if labels.dim() == 3:
        total = F.cross_entropy(scores, labels, ignore_index=VOID, reduction="sum")
        return total, (labels != VOID).sum()
    return -(labels * F.log_softmax(scores, dim=1)).sum(), labels.sum()


def fit_fast(
    features: Features,
    split: MaskSplit,
    chosen: Sequence[int],
    *,
    steps: int | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> LinearHead:
    """Train the head on cached tokens and the classes of cells, in seconds on a CPU.

    Args:
        features: Tokens of the split.
        split: Images and masks.
        chosen: Images to learn from.
        steps: Iterations; None is 1000, or eight passes through more than 1000 images.
        seed: Of the initial weights and the order of images.
        device: Where to train; None is the CPU.
    """
    where = device or torch.device("cpu")
    batches = cell_batches(features, split, chosen, seed=seed, device=where)
    steps = steps or max(FAST_STEPS, PASSES * len(chosen) // BATCH)
    return fit_steps(batches, classes=len(split.classes), steps=steps, rate=FAST_RATE, seed=seed)


def new_head(
    inputs: int, outputs: int, *, seed: int, device: torch.device
) -> tuple[nn.BatchNorm2d, nn.Conv2d]:
    """Make a batch norm and a 1 x 1 convolution; the global seed is not touched."""
    norm = nn.BatchNorm2d(inputs).to(device)
    conv: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, inputs, outputs, 1)
    chance = torch.Generator().manual_seed(seed)
    nn.init.normal_(conv.weight, std=0.01, generator=chance)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return norm, conv.to(device)


def rounds(chosen: Sequence[int], batch: int, chance: np.random.Generator) -> Iterator[list[int]]:
    """Go through the images in a new order each time, for ever, `batch` at a time."""
    waiting: list[int] = []
    while True:
        while len(waiting) < batch:
            waiting += [chosen[i] for i in chance.permutation(len(chosen))]
        yield waiting[:batch]
        waiting = waiting[batch:]


def cached_batches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[Batch]:
    """Read tokens from disk; masks are squashed to the size that the network saw."""

    @lru_cache(maxsize=512)
    def mask(index: int) -> Tensor:
        return torch.from_numpy(resized_nearest(split.read(index), features.size))

    for some in rounds(chosen, BATCH, np.random.default_rng(seed)):
        tokens = features.map(some)
        yield tokens.to(device), torch.stack([mask(i) for i in some]).to(device)


def cell_batches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[Batch]:
    """Read tokens from disk; cells hold the shares of the classes, nothing is thrown away."""
    grid = (CELLS * features.grid[0], CELLS * features.grid[1])

    @lru_cache(maxsize=512)
    def cells(index: int) -> Tensor:
        shares, known = patch_labels(split.read(index), grid, len(split.classes))
        return torch.unflatten((shares * known[:, None]).T, 1, grid).half()

    for some in rounds(chosen, BATCH, np.random.default_rng(seed)):
        labels = torch.stack([cells(i) for i in some]).to(device).float()
        yield features.map(some).to(device), labels


def live_batches(
    backbone: Backbone, split: MaskSplit, chosen: Sequence[int], *, size: Size, seed: int
) -> Iterator[Batch]:
    """Run the network on augmented crops of `size`."""
    chance = np.random.default_rng(seed)
    red, green, blue = (round(255 * value) for value in backbone.preprocessing.mean)
    for some in rounds(chosen, BATCH, chance):
        pairs = [
            augmented(
                read_photo(split.images[i]),
                split.read(i),
                crop=size,
                fill=(red, green, blue),
                chance=chance,
            )
            for i in some
        ]
        pixels = torch.stack([backbone.preprocessing(photo, size) for photo, _ in pairs])
        with torch.no_grad():
            tokens = backbone.forward(pixels.to(backbone.device, backbone.dtype))
        masks = torch.stack([torch.from_numpy(mask) for _, mask in pairs])
        yield as_map(tokens), masks.to(backbone.device)
