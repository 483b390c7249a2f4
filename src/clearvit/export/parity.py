"""Does the copy compute what the original does?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearvit.backbones.preprocessing import Size, as_size, fitting
from clearvit.backbones.vit import VitBackbone

TOLERANCE = 1e-4  # of the root mean square of the tokens: rounding stays far below, errors above
SEED, BATCH = 0, 2

Run = Callable[[Tensor], Tensor]
"""Normalised pixels (B, 3, height, width) to tokens after the final norm, (B, P + N, C)."""


@dataclass(frozen=True)
class Written:
    """What the writer of a format leaves behind.

    Attributes:
        path: The directory or file.
        loading: Python that loads it, ready to run.
        reader: The library that `run` reloaded it with.
        run: The reloaded copy.
        size: The size in pixels at which it must agree with the original.
        other_sizes: Whether it must agree at other sizes too.
        notes: What a user should know.
    """

    path: Path
    loading: str
    reader: str
    run: Run
    size: Size
    other_sizes: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """Copy against original on random pixels of one size."""

    size: Size  # (height, width) in pixels
    difference: float  # largest |difference| of any value of any token
    relative: float  # the same, in units of the root mean square of the original's values

    @property
    def passed(self) -> bool:
        """Tell whether the difference is rounding; never true for NaN."""
        return self.relative <= TOLERANCE


def compare(backbone: VitBackbone, run: Run, size: Size) -> Check:
    """Run both on the same random batch and compare prefix and patch tokens."""
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.randn(BATCH, 3, *size, generator=generator).to(backbone.device, backbone.dtype)
    with torch.no_grad():
        tokens = backbone.forward(pixels)
        ours = torch.cat([tokens.prefix, tokens.patches], dim=1).float().cpu()
        theirs = run(pixels).float().cpu()
    if ours.shape != theirs.shape:
        return Check(size, float("inf"), float("inf"))
    difference = float((ours - theirs).abs().max())
    return Check(size, difference, difference / float(ours.square().mean().sqrt()))


def another_size(native: Size, backbone: VitBackbone, wanted: int | Size | None) -> Size:
    """Choose a second size: oblong and smaller, so that a forgotten resize or a swap shows."""
    height, width = native
    return fitting(as_size(wanted or (height // 2, width * 3 // 4)), backbone.patch)
