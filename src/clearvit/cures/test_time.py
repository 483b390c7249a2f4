"""Test-time registers: find the neurons that make high-norm tokens, and give them a register.

A few hidden units are strongly active at artifact patches and hardly anywhere else. Moved to one
extra token, they do the same for the network and leave the patches alone. No training, no labels.

Jiang et al., "Vision Transformers Don't Need Trained Registers", NeurIPS 2025.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.outliers import Outliers, find_outliers, longest_run
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.activations import ActivationReader, Activity
from clearvit.cures.registers import check_can_hold, with_registers
from clearvit.errors import ModelError
from clearvit.images import Skipped, find_images, spread_evenly
from clearvit.options import Size
from clearvit.progress import Meter, Progress

Ratios = Mapping[int, float]
"""Block, from 0 -> ratio of its patches that lie beyond its cutoff."""

NEURON_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 50, 80, 120)  # to try
ENOUGH = 0.95  # of the high-norm tokens removed: no more neurons are tried
GAIN = 0.01  # of the high-norm tokens: what more neurons must remove to be worth it
PATIENCE = 4  # numbers tried without such a gain
BATCH = 2  # images per forward pass
CHECKED = 16  # images on which the numbers are tried
REQUIRED = 0.5  # of the high-norm tokens; an edit that removes fewer is refused


@dataclass(frozen=True)
class Neuron:
    """A hidden unit and its mean |activation| at both kinds of patches."""

    block: int  # from 0
    unit: int  # column of the MLP's second layer
    outliers: float  # at high-norm patches
    others: float  # at the other patches


@dataclass(frozen=True)
class RegisterNeurons:
    """The neurons to move, how they were found, and what moving them does."""

    found: tuple[Neuron, ...]  # the best first
    onset: int  # first block with high-norm tokens, from 0
    peak: int  # block where they first peak: defines the outliers, ends the search
    cutoffs: Mapping[int, float]  # times the median norm, for each block with high-norm tokens
    ratios: Mapping[int, Ratios]  # of high-norm patches, by number of neurons moved, 0 included
    images: int  # that were used
    checked: int  # of these, those on which the ratios were measured
    skipped: tuple[Skipped, ...]
    size: Size  # (height, width) in pixels

    def __str__(self) -> str:
        blocks = ", ".join(str(block) for block in self.neurons)
        return (
            f"{len(self.found)} neurons (block {blocks}) moved to a register:"
            f" {100 * self.removed:.0f} % of the high-norm tokens removed, on {self.checked} images"
        )

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON can hold them."""
        return {**dataclasses.asdict(self), "removed": self.removed}

    @property
    def neurons(self) -> dict[int, Tensor]:
        """Units of each block, as `NeuronBackbone` takes them."""
        return _by_block(self.found)

    @property
    def before(self) -> Ratios:
        """Ratio of high-norm patches in each block that has them."""
        return self.ratios[0]

    @property
    def after(self) -> Ratios:
        """The same with the neurons moved."""
        return self.ratios[len(self.found)]

    @property
    def removed(self) -> float:
        """Ratio of the high-norm patches that are gone, over all these blocks."""
        return _removed_ratio(self.before, self.after)


def test_time(
    backbone: VitBackbone,
    images: Any,
    *,
    size: int | Size | None = None,
    limit: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> NeuronBackbone:
    """Give a ViT a register that takes its high-norm artifacts, without training.

    Args:
        backbone: A ViT without registers; it is left as it was.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        limit: Images to use, spread evenly over what is given.
        seed: Seed of the detector's resampling.
        progress: Called with the stage, images that passed the network, and their number.

    Returns:
        The edited backbone. Its `report` is the `RegisterNeurons` it was made from.

    Raises:
        ModelError: The model has no high-norm tokens, or moving neurons does not remove them.
    """
    found = find_neurons(backbone, images, size=size, limit=limit, seed=seed, progress=progress)
    if found.removed < REQUIRED:
        raise ModelError(
            f"moving {len(found.found)} neurons of '{backbone.name}' removes only"
            f" {100 * found.removed:.0f} % of its high-norm tokens. Cure it by distillation."
        )
    cured = with_neurons(backbone, found.neurons)
    cured.report = found
    return cured


def with_neurons(
    backbone: VitBackbone, neurons: Mapping[int, Tensor], *, spare_class: bool = True
) -> NeuronBackbone:
    """Copy a ViT, add an empty register and move some hidden units of each block to it."""
    register = torch.zeros(1, backbone.width)
    return NeuronBackbone(with_registers(backbone, register), neurons, spare_class=spare_class)


def find_neurons(
    backbone: VitBackbone,
    images: Any,
    *,
    size: int | Size | None = None,
    limit: int = 100,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RegisterNeurons:
    """Find the hidden units that make high-norm patches.

    The images pass twice, for the norms of every block and for the activations at high-norm
    patches and elsewhere. Activations are summed at once, so only the norms take memory for each
    image, 4 bytes per patch and block. Then more and more neurons are moved, the most selective
    first, and a few of the images pass again, until the high-norm tokens are gone.

    Args:
        backbone: A ViT without registers.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        limit: Images to use, spread evenly over what is given.
        top: How many neurons; else the fewest that remove 95 % of the high-norm tokens, or as
            many as can be removed.
        seed: Seed of the detector's resampling.
        progress: Called with the stage, images that passed the network, and their number.

    Raises:
        ModelError: The model has no high-norm tokens, so there is nothing to move.
    """
    if limit < 1 or (top is not None and top < 1):
        raise ModelError(f"limit is {limit} and top is {top}; both must be at least 1.")
    check_can_hold(backbone)
    sources = spread_evenly(find_images(images), limit)
    counts = NEURON_COUNTS if top is None else (top,)
    meter = Meter(progress, 2 * len(sources) + len(counts) * min(CHECKED, len(sources)))
    reader = ActivationReader(backbone.fitting_size(size), BATCH, meter)
    seen = reader.norms(backbone, sources, range(backbone.depth))
    detected = _find_high_outliers(seen.values, seed)
    if not detected:
        raise ModelError(_nothing_to_move(backbone, len(seen.read), reader.size))
    peak = _peak_block(seen.values, detected)
    outliers = detected[peak].mask(seen.values[:, peak])
    ranked = _rank_units(reader.activity(backbone, seen.read, outliers, peak), max(counts))
    rows = spread_evenly(range(len(seen.read)), CHECKED)
    before = _outlier_ratios(detected, seen.values[rows][:, list(detected)])
    checked = [seen.read[row] for row in rows]

    def measure(count: int) -> Ratios:
        edited = with_neurons(backbone, _by_block(ranked[:count]))
        return _outlier_ratios(detected, reader.norms(edited, checked, list(detected)).values)

    ratios = _try_counts(measure, before, sorted({min(count, len(ranked)) for count in counts}))
    meter.finish()
    return RegisterNeurons(
        found=ranked[: _fewest_neurons(ratios)],
        onset=min(detected),
        peak=peak,
        cutoffs={block: found.cutoff for block, found in detected.items()},
        ratios=ratios,
        images=len(seen.read),
        checked=len(rows),
        skipped=seen.skipped,
        size=reader.size,
    )


def _try_counts(
    measure: Callable[[int], Ratios], before: Ratios, counts: Sequence[int]
) -> dict[int, Ratios]:
    """Move more and more neurons until the high-norm tokens are gone; ratios by the number."""
    ratios = {0: before}
    for count in counts:
        ratios[count] = measure(count)
        if _enough_removed(ratios):
            break
    return ratios


def selectivity(outliers: Tensor, others: Tensor) -> Tensor:
    """Score units by a log(a / b), a their mean |activation| at outliers and b elsewhere.

    The plain mean at outliers, a, also ranks units that are as active at every patch; moving those
    takes content away. A unit that is less active at outliers scores below 0.
    """
    return outliers * ((outliers + 1e-6) / (others + 1e-6)).log()


def _rank_units(activity: Activity, count: int) -> tuple[Neuron, ...]:
    """List the most selective units of all blocks, the best first."""
    units = [
        Neuron(block, unit, at, elsewhere)
        for block, pair in enumerate(zip(activity.outliers, activity.others, strict=True))
        for unit, at, elsewhere in _top_units(*pair, count)
    ]
    scores = selectivity(
        torch.tensor([u.outliers for u in units]), torch.tensor([u.others for u in units])
    )
    return tuple(units[i] for i in scores.argsort(descending=True, stable=True)[:count].tolist())


def _top_units(outliers: Tensor, others: Tensor, count: int) -> list[tuple[int, float, float]]:
    best = selectivity(outliers, others).topk(min(count, len(outliers))).indices
    return [(i, outliers[i].item(), others[i].item()) for i in best.tolist()]


def _find_high_outliers(norms: Tensor, seed: int) -> dict[int, Outliers]:
    """High-norm tokens of the blocks that pass them on, from norms (I, L, N)."""
    detected = [
        find_outliers(norms[:, block], "high", seed=seed) for block in range(norms.shape[1])
    ]
    return {
        block: found for block in longest_run(detected) if (found := detected[block]) is not None
    }


def _peak_block(norms: Tensor, detected: Mapping[int, Outliers]) -> int:
    """Find the first block after which high-norm tokens grow no more.

    Their norms may grow again in later blocks, but these are the same tokens.
    """

    def strength(block: int) -> float:
        own = norms[:, block]
        relative = own / own.median(dim=1, keepdim=True).values.clamp(min=1e-12)
        return float((relative.clamp(min=1e-12).log() * detected[block].mask(own)).mean())

    blocks = sorted(detected)
    for block, following in pairwise(blocks):
        if strength(following) <= strength(block):
            return block
    return blocks[-1]


def _outlier_ratios(detected: Mapping[int, Outliers], norms: Tensor) -> Ratios:
    """Ratio of patches beyond the cutoff of each block; norms (I, blocks, N)."""
    return {
        block: float(found.mask(norms[:, i]).float().mean())
        for i, (block, found) in enumerate(detected.items())
    }


def _removed_ratio(before: Ratios, after: Ratios) -> float:
    return 1 - sum(after.values()) / max(sum(before.values()), 1e-12)


def _enough_removed(ratios: Mapping[int, Ratios]) -> bool:
    """Tell whether more neurons are not worth trying."""
    removed = [_removed_ratio(ratios[0], after) for after in ratios.values()]
    earlier, recent = removed[:-PATIENCE], removed[-PATIENCE:]
    return removed[-1] >= ENOUGH or (len(earlier) > 1 and max(recent) < max(earlier) + GAIN)


def _fewest_neurons(ratios: Mapping[int, Ratios]) -> int:
    """Take the smallest number that removes enough, or about as much as any."""
    tried = {count: _removed_ratio(ratios[0], after) for count, after in ratios.items() if count}
    wanted = min(ENOUGH, max(tried.values()) - GAIN)
    return min(count for count, removed in tried.items() if removed >= wanted)


def _by_block(neurons: Sequence[Neuron]) -> dict[int, Tensor]:
    blocks = sorted({neuron.block for neuron in neurons})
    return {b: torch.tensor([n.unit for n in neurons if n.block == b]) for b in blocks}


def _nothing_to_move(backbone: VitBackbone, images: int, size: Size) -> str:
    return (
        f"'{backbone.name}' shows no high-norm tokens in {images} images at {size[0]} x {size[1]}"
        " pixels, so there is nothing to move to a register. `clearvit diagnose` tells which"
        " artifacts it has, if any; more images or a larger size may show more."
    )
