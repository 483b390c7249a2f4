"""`cv.cure(backbone, method="positional")` and `"instant"`: better tokens without training.

"positional" removes directions of position from the final tokens, "instant" may smooth them on the
grid too. What to do is chosen without labels: a patch of a random crop looks for its nearest token
among all patches of all images, and should find the place that it shows. For directions, close is
close enough; smoothing must help to find it to half a patch, where a wider reach alone does not.
Leaving the tokens as they are is always a candidate, and each step is checked on images that took
no part in its choice.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
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

__all__ = ["OutputReport", "edit_output", "positional_basis"]

CANDIDATES = (0, 5, 20, 50)  # directions to remove
DEFAULT = 20  # where there are no images to choose on
SCALES = (0.5, 0.8)  # side of a crop, as a fraction of the image's
NEAR, EXACT = 1.5, 0.5  # patches: how close to the true position counts as found
IMAGES = 48  # at most; each half checks what the other chooses
FEWEST = 8


@dataclass(frozen=True)
class OutputReport:
    """What follows the final norm now, and why.

    Gains are in the fraction of crop patches whose nearest token is where it should be, on images
    that took no part in the choice.
    """

    directions: int  # of position removed
    smooth: bool  # whether tokens are averaged with their neighbors
    found: dict[int, float]  # by directions removed, mean over images; {} without images
    gain: Interval | None  # of the directions over none, found within 1.5 patches
    smoothing_gain: Interval | None  # of smoothing on top, within half a patch; None if not asked
    images: int
    skipped: tuple[Skipped, ...] = ()  # files that could not be read

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON holds it."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        method = "positional" if self.smoothing_gain is None else "instant"
        return {"method": method, **content}

    def __str__(self) -> str:
        if self.gain is None:
            return (
                f"{self.directions} directions of position removed; not checked, since no images"
                " were given."
            )
        rates = ", ".join(f"{k}: {100 * rate:.1f} %" for k, rate in self.found.items())
        done = f"{self.directions} directions of position removed"
        if not self.directions:
            done = "no direction of position removed, since none helps"
        text = f"{done} ({_points(self.gain)}; crop patches found by directions removed: {rates})"
        if self.smoothing_gain is not None:
            verb = "smoothed" if self.smooth else "not smoothed"
            text += f"; {verb} ({_points(self.smoothing_gain)} within half a patch)"
        return f"{text}. {self.images} images; each half checked what the other chose."


def _points(gain: Interval) -> str:
    mean, low, high = (f"{100 * one:+.1f}" for one in (gain.mean, gain.low, gain.high))
    return f"{mean} points, 95 % CI {low} to {high}"


def edit_output(
    backbone: VitBackbone,
    images: str | Path | Iterable[object] = (),
    *,
    smoothing: bool = False,
    size: int | Size | None = None,
    directions: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> VitBackbone:
    """Return a copy of the backbone with linear steps after the final norm, where they help.

    Its `report` is an `OutputReport`.

    Args:
        backbone: A ViT; its weights are shared and unchanged.
        images: A few to choose on, 8 at least; without any, 20 directions are removed unchecked.
        smoothing: Let the choice include averaging each token with its neighbors, weights 1 2 1.
            That helps nearest neighbors and softens boundaries; it cannot be chosen without images.
        size: Image size in pixels at which the choice is made; the backbone's own by default.
        directions: How many to remove; chosen if None.
        seed: Seed of the noise images and of the crops.
        progress: Called with the stage, the images done and all images.
    """
    if isinstance(backbone, DenseClip):
        raise ModelError(
            f"'{backbone.name}' gives patches in the text space, after the final norm. Edit the"
            " CLIP model itself."
        )
    if backbone.fine is not None:
        raise ModelError(
            f"'{backbone.name}' has a head for fine tokens, trained on the tokens it has now."
            " Remove position from the model it was made of."
        )
    plain = with_output(backbone, None)
    sources = find_images(images) if not is_empty(images) else []
    if smoothing and not sources:
        raise ImageError(f"'instant' chooses on your images; give at least {FEWEST}.")
    counts = CANDIDATES if directions is None else tuple(dict.fromkeys((0, directions)))
    if sources:
        fitting = plain.fitting_size(size)
        report = choose_steps(plain, sources, fitting, counts, smoothing, seed, progress)
    else:
        count = DEFAULT if directions is None else directions
        report = OutputReport(count, False, {}, None, None, 0)
    wanted = OutputSteps(report.directions, report.smooth, seed)
    edited = with_output(backbone, wanted if report.directions or report.smooth else None)
    edited.report = report
    return edited


def with_output(backbone: VitBackbone, steps: OutputSteps | None) -> VitBackbone:
    """Return the same backbone with other steps after the final norm."""
    other = copy.copy(backbone)
    other.output = steps
    return other


def choose_steps(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    size: Size,
    counts: Sequence[int] = CANDIDATES,
    smoothing: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> OutputReport:
    """Choose what to do, and keep only what images that took no part in the choice confirm."""
    step = max(1, len(sources) // IMAGES)
    chosen = list(sources)[::step][:IMAGES]
    if len(chosen) < FEWEST:
        raise ImageError(
            f"{len(chosen)} images are too few to choose on; give at least {FEWEST}, or none for"
            f" {DEFAULT} directions of position, unchecked."
        )
    whole, crops, truth = crop_tokens(backbone, chosen, size, seed, progress)
    grid = backbone.grid_of(size)
    largest = min(max(counts), whole.shape[1] - 1, whole.shape[2])
    basis = OutputSteps(largest, False, seed).basis(backbone, grid) if largest else None

    def remove(count: int) -> tuple[Tensor, Tensor]:
        if basis is None or not count:
            return whole, crops
        return remove_directions(whole, basis[:count]), remove_directions(crops, basis[:count])

    rates = {k: found_rates(*remove(k), truth, grid) for k in counts if k <= largest}
    kept, gain = choose_and_check(rates, seed)
    smooth, smoother = 0, None
    if smoothing:
        sharp = remove(kept)
        soft = (smooth_grid(sharp[0], grid), smooth_grid(sharp[1], grid))
        exact = [found_rates(*pair, truth, grid, near=EXACT) for pair in (sharp, soft)]
        smooth, smoother = choose_and_check(dict(enumerate(exact)), seed)
    found = {count: float(rate.mean()) for count, rate in rates.items()}
    return OutputReport(kept, bool(smooth), found, gain, smoother, len(chosen))


def choose_and_check(rates: Mapping[int, Tensor], seed: int) -> tuple[int, Interval]:
    """Choose the candidate with the best mean rate, or 0 if that is not confirmed.

    Each half of the images checks what the other half chooses, so every image has a gain over
    candidate 0 whose choice it took no part in; the interval is that of these gains.

    Args:
        rates: By candidate, one rate per image, (I,); 0 is to do nothing.
        seed: Seed of the bootstrap.
    """
    gains = torch.zeros_like(rates[0])
    for choosing, checking in ((0, 1), (1, 0)):
        best = max(rates, key=lambda one: float(rates[one][choosing::2].mean()))
        gains[checking::2] = (rates[best] - rates[0])[checking::2]
    gain = bootstrap(gains.numpy(), seed=seed)
    best = max(rates, key=lambda one: float(rates[one].mean()))
    return (best if gain.low > 0 else 0), gain


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


def found_rates(
    whole: Tensor, crops: Tensor, truth: Tensor, grid: Size, *, near: float = NEAR
) -> Tensor:
    """Fraction of the patches of each crop whose nearest token is where it should be, (I,).

    Args:
        whole: Patches of I images, (I, N, C).
        crops: Patches of their crops, (I, N, C).
        truth: Grid position that each crop patch shows, (I, N, 2).
        grid: (H, W) of the images.
        near: How close to the true position counts as found, in patches.
    """
    bank = F.normalize(whole.flatten(0, 1), dim=1)
    rates = []
    for number, (queries, positions) in enumerate(zip(crops, truth, strict=True)):
        nearest = (F.normalize(queries, dim=1) @ bank.T).argmax(1)
        image, cell = nearest // whole.shape[1], nearest % whole.shape[1]
        at = torch.stack([cell // grid[1], cell % grid[1]], 1)
        close = ((at - positions).abs() <= near).all(1)
        rates.append((close & (image == number)).double().mean())
    return torch.stack(rates)


def is_empty(images: object) -> bool:
    """Tell whether no images were given, as by default."""
    return isinstance(images, (tuple, list)) and not images
