"""Test-time registers: find the neurons that make high-norm tokens, and give them a register.

A few hidden units speak loudly at artifact patches and hardly anywhere else. Sent to one extra
token, they do the same for the network and leave the patches alone. No training, no labels.

Jiang et al., "Vision Transformers Don't Need Trained Registers", NeurIPS 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.activity import Activity, Walk
from clearvit.cure.registers import check_can_hold, with_registers
from clearvit.errors import ModelError
from clearvit.images import Skipped, find_images, spread
from clearvit.progress import Meter, Progress
from clearvit.tails import Tail, find_tail, lasting

"""Called with the number of images that passed the network and of all, repeats counted."""
Shares = Mapping[int, float]
"""Block, from 0 -> share of the patches beyond the cutoff of that block."""

LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 50, 80, 120)  # numbers of neurons to try
ENOUGH = 0.95  # of the high-norm tokens removed: no more neurons are tried
GAIN = 0.01  # of the high-norm tokens: what more neurons must remove to be worth it
PATIENCE = 4  # steps of the ladder without such a gain
CHECKED = 16  # images on which the ladder is climbed
HELPED = 0.5  # of the high-norm tokens; an edit that removes fewer is no cure


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
    crest: int  # block where they are strongest at first: defines the outliers, ends the search
    cutoffs: Mapping[int, float]  # times the median norm, for each block with high-norm tokens
    shares: Mapping[int, Shares]  # of high-norm patches with so many neurons moved, 0 included
    images: int  # that were looked at
    checked: int  # of these, the ones that the shares were measured on
    skipped: tuple[Skipped, ...]
    size: Size  # (height, width) in pixels

    @property
    def neurons(self) -> dict[int, Tensor]:
        """Units of each block, as `NeuronBackbone` takes them."""
        return _by_block(self.found)

    @property
    def before(self) -> Shares:
        """Share of high-norm patches in each block that has them."""
        return self.shares[0]

    @property
    def after(self) -> Shares:
        """The same with the neurons moved."""
        return self.shares[len(self.found)]

    @property
    def removed(self) -> float:
        """Share of the high-norm patches that are gone, over all these blocks."""
        return _removed(self.before, self.after)


def test_time(
    backbone: VitBackbone,
    images: Any,
    *,
    size: int | Size | None = None,
    limit: int = 100,
    batch: int = 2,
    seed: int = 0,
    progress: Progress | None = None,
) -> NeuronBackbone:
    """Give a ViT a register that takes its high-norm artifacts, without training.

    Args:
        backbone: A ViT without registers; it is left as it was.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        limit: Images to look at, spread evenly over what is given.
        batch: Images per forward pass; only memory and speed depend on it.
        seed: Of the detector's resampling.
        progress: Told how many images passed the network, of how many.

    Returns:
        The edited backbone. Its `report` is the `RegisterNeurons` it was made from.

    Raises:
        ModelError: The model has no high-norm tokens, or moving neurons does not remove them.
    """
    found = find_neurons(
        backbone, images, size=size, limit=limit, batch=batch, seed=seed, progress=progress
    )
    if found.removed < HELPED:
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
    batch: int = 2,
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
        limit: Images to look at, spread evenly over what is given.
        batch: Images per forward pass; only memory and speed depend on it.
        top: How many neurons; else the fewest that remove 95 % of the high-norm tokens, or as
            many as can be removed.
        seed: Of the detector's resampling.
        progress: Told how many images passed the network, of how many.

    Raises:
        ModelError: The model has no high-norm tokens, so there is nothing to move.
    """
    if limit < 1 or (top is not None and top < 1):
        raise ModelError(f"limit is {limit} and top is {top}; both must be at least 1.")
    check_can_hold(backbone)
    pictures = spread(find_images(images), limit)
    ladder = LADDER if top is None else (top,)
    passes = Meter(progress, 2 * len(pictures) + len(ladder) * min(CHECKED, len(pictures)))
    walk = Walk(backbone.fitting_size(size), batch, passes.advance)
    seen = walk.norms(backbone, pictures, range(backbone.depth))
    tails = _high_tails(seen.values, seed)
    if not tails:
        raise ModelError(_nothing_to_move(backbone, len(seen.read), walk.size))
    crest = _crest(seen.values, tails)
    outliers = tails[crest].flags(seen.values[:, crest])
    ranked = _ranked(walk.activity(backbone, seen.read, outliers, crest), max(ladder))
    rows = spread(range(len(seen.read)), CHECKED)
    shares: dict[int, Shares] = {0: _shares(tails, seen.values[rows][:, list(tails)])}
    for count in sorted({min(count, len(ranked)) for count in ladder}):
        edited = with_neurons(backbone, _by_block(ranked[:count]))
        again = walk.norms(edited, [seen.read[row] for row in rows], list(tails))
        shares[count] = _shares(tails, again.values)
        if _climbed(shares):
            break
    passes.finish()
    return RegisterNeurons(
        found=ranked[: _fewest(shares)],
        onset=min(tails),
        crest=crest,
        cutoffs={block: tail.cutoff for block, tail in tails.items()},
        shares=shares,
        images=len(seen.read),
        checked=len(rows),
        skipped=seen.skipped,
        size=walk.size,
    )


def selectivity(outliers: Tensor, others: Tensor) -> Tensor:
    """Score units by a log(a / b), a their mean |activation| at outliers and b elsewhere.

    The plain mean at outliers, a, also ranks units that are as loud at every patch; moving those
    takes content away. A unit that is quieter at outliers scores below 0.
    """
    return outliers * ((outliers + 1e-6) / (others + 1e-6)).log()


def _ranked(activity: Activity, count: int) -> tuple[Neuron, ...]:
    """List the most selective units of all blocks, the best first."""
    units = [
        Neuron(block, unit, at, elsewhere)
        for block, pair in enumerate(zip(activity.outliers, activity.others, strict=True))
        for unit, at, elsewhere in _best(*pair, count)
    ]
    scores = selectivity(
        torch.tensor([u.outliers for u in units]), torch.tensor([u.others for u in units])
    )
    return tuple(units[i] for i in scores.argsort(descending=True, stable=True)[:count].tolist())


def _best(outliers: Tensor, others: Tensor, count: int) -> list[tuple[int, float, float]]:
    best = selectivity(outliers, others).topk(min(count, len(outliers))).indices
    return [(i, outliers[i].item(), others[i].item()) for i in best.tolist()]


def _high_tails(norms: Tensor, seed: int) -> dict[int, Tail]:
    """High-norm tokens of the blocks that pass them on, from norms (I, L, N)."""
    tails = [find_tail(norms[:, block], "high", seed=seed) for block in range(norms.shape[1])]
    return {block: tail for block in lasting(tails) if (tail := tails[block]) is not None}


def _crest(norms: Tensor, tails: Mapping[int, Tail]) -> int:
    """Find the first block after which high-norm tokens grow no more.

    Later blocks may lengthen them again, but these are the same tokens.
    """

    def strength(block: int) -> float:
        own = norms[:, block]
        relative = own / own.median(dim=1, keepdim=True).values.clamp(min=1e-12)
        return float((relative.clamp(min=1e-12).log() * tails[block].flags(own)).mean())

    blocks = sorted(tails)
    for block, following in pairwise(blocks):
        if strength(following) <= strength(block):
            return block
    return blocks[-1]


def _shares(tails: Mapping[int, Tail], norms: Tensor) -> Shares:
    """Share of patches beyond the cutoff of each block; norms (I, blocks, N)."""
    return {
        block: float(tail.flags(norms[:, i]).float().mean())
        for i, (block, tail) in enumerate(tails.items())
    }


def _removed(before: Shares, after: Shares) -> float:
    return 1 - sum(after.values()) / max(sum(before.values()), 1e-12)


def _climbed(shares: Mapping[int, Shares]) -> bool:
    """Tell whether more neurons are not worth trying."""
    removed = [_removed(shares[0], after) for after in shares.values()]
    earlier, lately = removed[:-PATIENCE], removed[-PATIENCE:]
    return removed[-1] >= ENOUGH or (len(earlier) > 1 and max(lately) < max(earlier) + GAIN)


def _fewest(shares: Mapping[int, Shares]) -> int:
    """Take the smallest number that removes enough, or about as much as any."""
    tried = {count: _removed(shares[0], after) for count, after in shares.items() if count}
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
