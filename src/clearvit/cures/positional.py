"""`cv.cure(backbone, method="positional")`: remove position from the tokens, without training.

How many directions to remove is chosen without labels: a patch of a random crop looks for its
nearest token among all patches of all images, and should find the place that it shows. Removing
none is always a candidate, and the choice is checked on images that took no part in it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.output import OutputSteps, positional_basis, remove_directions, smooth_grid
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError, ModelError
from clearvit.images import ImageSource, Skipped, find_images, read_image
from clearvit.options import Size
from clearvit.progress import Meter, Progress
from clearvit.stats import Interval, bootstrap

__all__ = ["PositionalReport", "positional_basis", "remove_position"]

CANDIDATES = (0, 5, 20, 50)  # directions to remove
DEFAULT = 20  # where there are no images to choose on
SCALES = (0.5, 0.8)  # side of a crop, as a fraction of the image's
NEAR = 1.5  # patches: how close to the true position counts as found
IMAGES = 24  # at most; half of them choose, half of them check
FEWEST = 8


@dataclass(frozen=True)
class PositionalReport:
    """How many directions were removed, and why."""

    directions: int
    smooth: bool
    found: dict[int, float]  # fraction of crop patches found, by directions, on the choosing half
    gain: Interval | None  # of the choice over none, on the checking half; None without images
    images: int
    skipped: tuple[Skipped, ...] = ()  # files that could not be read

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON holds it."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"method": "positional", **content}

    def __str__(self) -> str:
        if self.gain is None:
            return (
                f"{self.directions} directions of position removed; not checked, since no images"
                " were given."
            )
        rates = ", ".join(f"{k}: {100 * rate:.1f} %" for k, rate in self.found.items())
        checked = (
            f"on {self.images - self.images // 2} other images"
            f" {100 * self.gain.mean:+.1f} points (95 % CI {100 * self.gain.low:+.1f} to"
            f" {100 * self.gain.high:+.1f})"
        )
        if not self.directions:
            return f"no direction removed: it does not help here ({checked}; found {rates})."
        return f"{self.directions} directions of position removed: {checked}; found {rates}."


def remove_position(
    backbone: VitBackbone,
    images: str | Path | Iterable[object] = (),
    *,
    size: int | Size | None = None,
    directions: int | None = None,
    smooth: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> VitBackbone:
    """Return a copy of the backbone whose final patch tokens carry less position.

    Its `report` is a `PositionalReport`.

    Args:
        backbone: A ViT; its weights are shared and unchanged.
        images: A few to choose the number of directions on, 8 at least; none are needed otherwise.
        size: Image size in pixels at which the choice is made; the backbone's own by default.
        directions: How many to remove; chosen if None, or 20 without images.
        smooth: Also average each token with its neighbors; helps nearest neighbors and harms thin
            objects and boundaries.
        seed: Seed of the noise images and of the crops.
        progress: Called with the stage, the images done and all images.
    """
    if isinstance(backbone, DenseClip):
        raise ModelError(
            f"'{backbone.name}' gives patches in the text space, after the final norm. Remove"
            " position from the CLIP model itself."
        )
    plain = with_output(backbone, None)
    sources = find_images(images) if not _is_empty(images) else []
    fitting = plain.fitting_size(size)
    if directions is not None or not sources:
        count = DEFAULT if directions is None else directions
        report = PositionalReport(count, smooth, {}, None, 0)
    else:
        report = choose_directions(
            plain, sources, fitting, smooth=smooth, seed=seed, progress=progress
        )
    steps = OutputSteps(report.directions, smooth, seed)
    edited = with_output(backbone, steps if report.directions or smooth else None)
    edited.report = report
    return edited


def with_output(backbone: VitBackbone, steps: OutputSteps | None) -> VitBackbone:
    """Return the same backbone with other steps after the final norm."""
    other = copy.copy(backbone)
    other.output = steps
    return other


def choose_directions(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    size: Size,
    *,
    smooth: bool,
    seed: int,
    progress: Progress | None = None,
) -> PositionalReport:
    """Choose how many directions to remove on half of the images; check on the other half."""
    step = max(1, len(sources) // IMAGES)
    chosen = list(sources)[::step][:IMAGES]
    if len(chosen) < FEWEST:
        raise ImageError(
            f"{len(chosen)} images are too few to choose the directions of position; give at least"
            f" {FEWEST}, or directions=20."
        )
    whole, crops, truth = crop_tokens(backbone, chosen, size, seed, progress)
    grid = backbone.grid_of(size)
    largest = min(max(CANDIDATES), whole.shape[1] - 1, whole.shape[2])
    steps = OutputSteps(largest, smooth, seed)
    basis = steps.basis(backbone, grid)
    rates = {}
    for count in (k for k in CANDIDATES if k <= largest):
        edited = [remove_directions(part, basis[:count]) for part in (whole, crops)]
        if smooth:
            edited = [smooth_grid(part, grid) for part in edited]
        rates[count] = found_rates(edited[0], edited[1], truth, grid)
    choosing = slice(0, len(chosen) // 2)
    checking = slice(len(chosen) // 2, None)
    means = {count: float(rate[choosing].mean()) for count, rate in rates.items()}
    best = max(means, key=lambda count: means[count])
    gain = bootstrap((rates[best] - rates[0])[checking].numpy(), seed=seed)
    kept = best if gain.low > 0 else 0
    return PositionalReport(kept, smooth, means, gain, len(chosen))


@torch.no_grad()
def crop_tokens(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    size: Size,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of images and of one random crop of each, mirrored half of the time.

    Returns:
        Patches of the images and of the crops, (I, N, C) each, and where the center of each crop
        patch lies on the grid of its image, (I, N, 2) as (row, column).
    """
    rng = np.random.default_rng(seed)
    grid, meter = backbone.grid_of(size), Meter(progress, len(sources), "crops")
    rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in grid), indexing="ij")
    whole, crops, truth = [], [], []
    for source in sources:
        image = read_image(source.source)
        side, mirrored = rng.uniform(*SCALES), bool(rng.integers(2))
        left, top = rng.uniform(0, 1 - side, 2)
        width, height = image.size
        box = (left * width, top * height, (left + side) * width, (top + side) * height)
        crop = image.crop(tuple(round(edge) for edge in box))
        pixels = torch.stack([backbone.preprocessing(one, size) for one in (image, crop)])
        if mirrored:
            pixels[1] = pixels[1].flip(2)
        tokens = backbone.forward(pixels.to(backbone.device, backbone.dtype)).patches.float().cpu()
        across = grid[1] - columns if mirrored else columns
        down = top * grid[0] + side * rows - 0.5
        truth.append(torch.stack([down, left * grid[1] + side * across - 0.5], -1).flatten(0, 1))
        whole.append(tokens[0])
        crops.append(tokens[1])
        meter.advance()
    return torch.stack(whole), torch.stack(crops), torch.stack(truth)


def found_rates(whole: Tensor, crops: Tensor, truth: Tensor, grid: Size) -> Tensor:
    """Fraction of the patches of each crop whose nearest token is where it should be, (I,).

    Args:
        whole: Patches of I images, (I, N, C).
        crops: Patches of their crops, (I, N, C).
        truth: Grid position that each crop patch shows, (I, N, 2).
        grid: (H, W) of the images.
    """
    bank = F.normalize(whole.flatten(0, 1), dim=1)
    rates = []
    for number, (queries, positions) in enumerate(zip(crops, truth, strict=True)):
        nearest = (F.normalize(queries, dim=1) @ bank.T).argmax(1)
        image, cell = nearest // whole.shape[1], nearest % whole.shape[1]
        at = torch.stack([cell // grid[1], cell % grid[1]], 1)
        near = ((at - positions).abs() <= NEAR).all(1)
        rates.append((near & (image == number)).double().mean())
    return torch.stack(rates)


def _is_empty(images: object) -> bool:
    return isinstance(images, (tuple, list)) and not images
