"""The linear probe trained by gradient steps: batch norm and 1 x 1 convolution, AdamW, poly decay.

`pixel_batches` trains on cached tokens and the labels of pixels, without augmentation.
`train_fast_head` trains on the class fractions of cells instead, in fewer and larger steps. A
convex fit without the learned scales of the batch norm ends points lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.datasets.splits import VOID, MaskSplit
from clearvit.errors import ImageError
from clearvit.probes.features import Features
from clearvit.probes.linear import LinearHead, fold_batch_norm
from clearvit.probes.patches import patch_labels, resize_nearest

BATCH, LR, WEIGHT_DECAY, POWER = 8, 1e-3, 1e-4, 0.9
STEPS = 2000  # of the probe on pixels
CELLS = 2  # per side of a patch, of the fast probe: its outputs are bilinear, finer adds nothing
FAST_STEPS, FAST_LR = 1000, 2e-3
FAST_EPOCHS = 8  # of the fast probe, where these are more than its steps
Batch = tuple[Tensor, Tensor]
"""Tokens (B, C, H, W), and classes of pixels (B, height, width) or of cells (B, K, height, width).

Labels of cells are class fractions that sum to the fraction of the cell that is not void.
"""


def train_head(
    batches: Iterator[Batch], *, classes: int, steps: int = STEPS, lr: float = LR, seed: int = 0
) -> LinearHead:
    """Train a head on batches, with cross-entropy at the resolution of the labels.

    Args:
        batches: Endless.
        classes: Number of outputs K.
        steps: Training iterations.
        lr: Learning rate of the first step.
        seed: Seed of the initial weights.
    """
    tokens, labels = next(batches)
    valid = torch.zeros((), device=tokens.device)
    norm, conv = make_head(tokens.shape[1], classes, seed=seed, device=tokens.device)
    weights = [*norm.parameters(), *conv.parameters()]
    solver = torch.optim.AdamW(weights, lr, weight_decay=WEIGHT_DECAY)
    poly = torch.optim.lr_scheduler.PolynomialLR(solver, steps, POWER)
    with torch.enable_grad():
        for step in range(steps):
            if step:
                tokens, labels = next(batches)
            scores = conv(norm(tokens))
            scores = F.interpolate(scores, labels.shape[-2:], mode="bilinear", align_corners=False)
            total, count = cross_entropy(scores, labels)
            valid += count
            solver.zero_grad()
            (total / count.clamp(min=1)).backward()  # a batch may be all void
            solver.step()
            poly.step()
    if not valid:
        raise ImageError("every labelled pixel is void; there is nothing to learn from.")
    return fold_batch_norm(norm, conv)


def cross_entropy(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy over what is not void, and count it.

    Args:
        scores: (B, K, height, width).
        labels: Of pixels (B, height, width) or of cells (B, K, height, width), see `Batch`.
    """
    if labels.dim() == 3:
        total = F.cross_entropy(scores, labels, ignore_index=VOID, reduction="sum")
        return total, (labels != VOID).sum()
    return -(labels * F.log_softmax(scores, dim=1)).sum(), labels.sum()


def train_fast_head(
    features: Features,
    split: MaskSplit,
    chosen: Sequence[int],
    *,
    steps: int | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> LinearHead:
    """Train the head on cached tokens and the class fractions of cells, in seconds on a CPU.

    Args:
        features: Tokens of the split.
        split: Images and masks.
        chosen: Indices of the images to learn from.
        steps: Training iterations; None is 1000, or eight epochs of more than 1000 images.
        seed: Seed of the initial weights and of the order of images.
        device: Where to train; None is the CPU.
    """
    where = device or torch.device("cpu")
    batches = cell_batches(features, split, chosen, seed=seed, device=where)
    steps = steps or max(FAST_STEPS, FAST_EPOCHS * len(chosen) // BATCH)
    return train_head(batches, classes=len(split.classes), steps=steps, lr=FAST_LR, seed=seed)


def make_head(
    inputs: int, outputs: int, *, seed: int, device: torch.device
) -> tuple[nn.BatchNorm2d, nn.Conv2d]:
    """Make a batch norm and a 1 x 1 convolution; the global seed is not touched."""
    norm = nn.BatchNorm2d(inputs).to(device)
    conv: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, inputs, outputs, 1)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(conv.weight, std=0.01, generator=generator)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return norm, conv.to(device)


def shuffle_batches(
    chosen: Sequence[int], size: int, rng: np.random.Generator
) -> Iterator[list[int]]:
    """Yield batches of indices for ever, in a new order in each epoch."""
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting += [chosen[i] for i in rng.permutation(len(chosen))]
        yield waiting[:size]
        waiting = waiting[size:]


def pixel_batches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[Batch]:
    """Read tokens from disk; masks are resized to the size that the network saw."""

    @lru_cache(maxsize=512)
    def mask(index: int) -> Tensor:
        return torch.from_numpy(resize_nearest(split.read(index), features.size))

    for some in shuffle_batches(chosen, BATCH, np.random.default_rng(seed)):
        tokens = features.map(some)
        yield tokens.to(device), torch.stack([mask(i) for i in some]).to(device)


def cell_batches(
    features: Features, split: MaskSplit, chosen: Sequence[int], *, seed: int, device: torch.device
) -> Iterator[Batch]:
    """Read tokens from disk; labels are the class fractions of cells."""
    grid = (CELLS * features.grid[0], CELLS * features.grid[1])

    @lru_cache(maxsize=512)
    def cells(index: int) -> Tensor:
        fractions, valid = patch_labels(split.read(index), grid, len(split.classes))
        return torch.unflatten((fractions * valid[:, None]).T, 1, grid).half()

    for some in shuffle_batches(chosen, BATCH, np.random.default_rng(seed)):
        labels = torch.stack([cells(i) for i in some]).to(device).float()
        yield features.map(some).to(device), labels
