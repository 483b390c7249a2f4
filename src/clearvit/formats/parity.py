"""Compare the tokens of an exported copy with those of the original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import as_size, round_to_patches
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.options import Size

TOLERANCE = 1e-4  # of the root mean square of the tokens: rounding stays far below, errors above
# Thousands of tokens have a few in which rounding is amplified: torch itself is 2e-4 from double
# precision in one of DINOv2's 1370 tokens at 518 px. Errors of a graph show in all of them.
FEW, FEW_TOLERANCE = 0.001, 1e-3
SEED, BATCH = 0, 2
NOISY, SMOOTH = 2, 2  # synthetic images that a graph is checked on
TIES = 0.01  # fraction of patches that two of equal score may exchange, or that may copy another
ALIKE = 0.99  # mean cosine of an image in which such patches were exchanged

Run = Callable[[Tensor], Tensor]
"""Normalized pixels (B, 3, height, width) to tokens after the final norm, (B, P + N, C)."""


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
    cosine: float = 1.0  # mean over tokens
    ties: int = 0  # tokens of a pruned model left out, because rounding decided who was kept
    typical: float | None = None  # as `relative`, but for one token in a thousand; None: the same
    prefix_cosine: float | None = None  # mean over prefix tokens; None without any
    images: int = BATCH  # compared
    photos: bool = False  # whether they were images of the user; else synthetic

    @property
    def passed(self) -> bool:
        """Tell whether the difference is rounding; never true for NaN."""
        typical = self.relative if self.typical is None else self.typical
        return typical <= TOLERANCE and self.relative <= FEW_TOLERANCE


def compare(backbone: VitBackbone, run: Run, size: Size) -> Check:
    """Run both on the same random batch and compare prefix and patch tokens."""
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.randn(BATCH, 3, *size, generator=generator).to(backbone.device, backbone.dtype)
    with torch.no_grad():
        tokens = backbone.forward(pixels)
        ours = _sequence(tokens)
        theirs = run(pixels).float().cpu()
    if ours.shape != theirs.shape:
        return Check(size, float("inf"), float("inf"))
    distance = (ours - theirs).abs().amax(dim=2).nan_to_num(nan=float("inf"))
    scale = float(ours.square().mean().sqrt())
    difference = float(distance.max())
    return Check(size, difference, difference / scale, typical=_typical(distance) / scale)


def _typical(distance: Tensor) -> float:
    """Largest of all distances but the few largest."""
    count = distance.numel()
    return float(distance.flatten().sort().values[count - 1 - int(FEW * count)])


def compare_runtime(
    backbone: VitBackbone, copied: Backbone, size: Size, photos: Tensor | None = None
) -> Check:
    """Compare tokens on synthetic images or, if given, photos; the copy gets them in two batches.

    A pruned model ranks patches, and rounding may turn the order of two that score the same. An
    image in which the copy keeps other patches, few of them, need only be alike; where it keeps the
    same, one patch in a hundred may be restored from another. Both are counted.
    """
    pixels = synthetic_images(size) if photos is None else photos
    with torch.no_grad():
        original = backbone.forward(pixels)
        parts = [copied.forward(pixels[:-1]), copied.forward(pixels[-1:])]
    copy = Tokens.concatenate(parts)
    ours, theirs = _sequence(original), _sequence(copy)
    if ours.shape != theirs.shape:
        return Check(size, float("inf"), float("inf"), 0.0)
    distance = (ours - theirs).abs().amax(dim=2).nan_to_num(nan=float("inf"))  # (B, P + N)
    scale = float(ours.square().mean().sqrt())
    cosines = torch.cosine_similarity(ours, theirs, dim=2)  # (B, P + N)
    cosine, prefix = cosines.mean(1), original.prefix.shape[1]
    judged, ties = distance, 0
    if original.kept is not None and copy.kept is not None and not bool(original.kept.all()):
        exchanged = (original.kept.cpu() != copy.kept.cpu()).float().mean(1)
        excused = (exchanged > 0) & (exchanged <= 2 * TIES) & (cosine >= ALIKE)
        spare = int(TIES * distance.shape[1])
        typical = distance.sort(dim=1).values[:, : distance.shape[1] - spare]
        judged = typical if bool(excused.all()) else typical[~excused]
        ties = int((distance > TOLERANCE * scale).sum())
    worst = float(judged.max())
    return Check(
        size,
        worst,
        worst / scale,
        cosine=float(cosine.mean()),
        ties=ties,
        typical=_typical(judged) / scale,
        prefix_cosine=float(cosines[:, :prefix].mean()) if prefix else None,
        images=len(pixels),
        photos=photos is not None,
    )


def synthetic_images(size: Size) -> Tensor:
    """Make noise and smooth colors, both (B, 3, height, width) and about normalized."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(NOISY, 3, *size, generator=generator)
    cells = torch.randn(SMOOTH, 3, 6, 6, generator=generator)
    return torch.cat([noise, F.interpolate(cells, size, mode="bicubic")])


def _sequence(tokens: Tokens) -> Tensor:
    return torch.cat([tokens.prefix, tokens.patches], dim=1).float().cpu()


def choose_second_size(native: Size, backbone: VitBackbone, wanted: int | Size | None) -> Size:
    """Choose a smaller size that is not square, so that swapped axes show."""
    height, width = native
    return round_to_patches(as_size(wanted or (height // 2, width * 3 // 4)), backbone.patch)
