"""The linear probe trained step by step: batch norm and 1 x 1 convolution, AdamW, poly schedule.

`cached_batches` trains on tokens from disk, without augmentation. `live_batches` runs the network
on augmented crops, which is the recipe of the paper and needs a GPU for its 20 000 iterations.
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
from clearvit.dense.patches import resized_nearest
from clearvit.dense.splits import VOID, MaskSplit, read_photo

BATCH, RATE, DECAY, POWER = 8, 1e-3, 1e-4, 0.9
Batch = tuple[Tensor, Tensor]
"""Tokens (B, C, H, W) and classes (B, height, width)."""


def fit_steps(batches: Iterator[Batch], *, classes: int, steps: int, seed: int = 0) -> LinearHead:
    """Train a head on batches, with cross-entropy at the resolution of the masks.

    Args:
        batches: Endless.
        classes: Number of outputs K.
        steps: Iterations.
        seed: Of the initial weights.
    """
    tokens, masks = next(batches)
    norm, conv = new_head(tokens.shape[1], classes, seed=seed, device=tokens.device)
    solver = torch.optim.AdamW([*norm.parameters(), *conv.parameters()], RATE, weight_decay=DECAY)
    poly = torch.optim.lr_scheduler.LambdaLR(
        solver, lambda i: (1 - min(i, steps - 1) / steps) ** POWER
    )
    with torch.enable_grad():
        for step in range(steps):
            if step:
                tokens, masks = next(batches)
            scores = conv(norm(tokens))
            size = (masks.shape[1], masks.shape[2])
            scores = F.interpolate(scores, size, mode="bilinear", align_corners=False)
            loss = F.cross_entropy(scores, masks, ignore_index=VOID, reduction="sum")
            loss = loss / (masks != VOID).sum().clamp(min=1)  # a batch may be all void
            solver.zero_grad()
            loss.backward()
            solver.step()
            poly.step()
    return head_of(norm, conv)


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
