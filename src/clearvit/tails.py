"""Is there a second mode in the tail? A detector that can say no.

Norms of patch tokens, relative to the median of their image and in logarithms, form one hump with
tails that fall at least exponentially: such a density is log-concave, so its hazard rate never
falls. The hazard measured inside the hump therefore bounds how many tokens the hump alone can put
beyond any point. Artifact tokens are a tail that holds many times more than this bound, while being
few. No percentile is fixed: a hump without a second mode gives no cutoff at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

Side = Literal["high", "low"]

REACH, WIDTH = 6.0, 0.01  # the histogram covers exp(-6) .. exp(6) times the median, in 1 % steps
BINS = round(2 * REACH / WIDTH)
BULK = (0.70, 0.88)  # quantiles between which the hazard is measured; artifacts lie beyond
EXCESS = 10.0  # a tail counts if it holds this many times what the hump can explain
RAREST, COMMONEST = 0.001, 0.10  # share of tokens; more than a tenth is a population, no artifact
FEWEST = 3  # tokens
GAP = 0.1  # an empty stretch of this many e-folds separates two modes
CHANCE = 1e-4  # of so many tokens, were the hump all there is; the first of many bins is taken
NEAREST = 1.3  # times the median; a smaller difference is no artifact whatever its significance
RESAMPLES = 100
FEW_IMAGES = 8  # below this, tokens are resampled instead of images


@dataclass(frozen=True)
class Tail:
    """Tokens on one side that the hump cannot explain."""

    side: Side
    cutoff: float  # times the median norm of the image; tokens beyond it are flagged
    fraction: float  # of all tokens
    interval: tuple[float, float]  # 95 % of the fraction, over resampled images
    count: int
    expected: float  # tokens that the hump alone can put beyond the cutoff, at most
    confidence: float  # share of resamples in which the tail is found again, 0..1

    def flags(self, norms: Tensor) -> Tensor:
        """Mark the tokens beyond the cutoff; norms (B, N) before the final norm -> (B, N) bool."""
        relative = norms / norms.median(dim=1, keepdim=True).values.clamp(min=1e-12)
        return relative >= self.cutoff if self.side == "high" else relative <= self.cutoff


def find_tail(
    values: Tensor,
    side: Side,
    *,
    seed: int = 0,
    fewest: int = FEWEST,
    chance: float = CHANCE,
) -> Tail | None:
    """Look for artifact tokens among the norms of several images, (I, N), all positive.

    Fewer than `fewest` tokens are never called a tail, nor what the hump alone would show more
    often than `chance`.
    """
    counts = log_histogram(values, side)
    found = _cut(counts.sum(0), fewest, chance)
    if found is None:
        return None
    bin_number, expected = found
    resampled = _resampled(counts, seed)
    beyond = resampled[:, bin_number:].sum(1) / resampled.sum(1).clamp(min=1)
    low, high = torch.quantile(beyond, torch.tensor([0.025, 0.975])).tolist()
    again = sum(_cut(sample, fewest, chance) is not None for sample in resampled) / len(resampled)
    count = int(counts[:, bin_number:].sum())
    edge = float(torch.tensor(-REACH + WIDTH * bin_number).exp())
    return Tail(
        side=side,
        cutoff=edge if side == "high" else 1 / edge,
        fraction=count / float(counts.sum()),
        interval=(low, high),
        count=count,
        expected=expected,
        confidence=again,
    )


def lasting(tails: Sequence[Tail | None]) -> list[int]:
    """Name the longest run of neighbouring blocks with a tail, given those of all blocks.

    A single block inside the network is not enough: contrast of the picture shows in the first
    block, and a true artifact is carried on by the residual stream.
    """
    longest: list[int] = []
    for present, group in groupby(range(len(tails)), key=lambda block: tails[block] is not None):
        run = list(group)
        lasts = len(run) > 1 or run[-1] == len(tails) - 1
        if present and lasts and len(run) > len(longest):
            longest = run
    return longest


def log_histogram(values: Tensor, side: Side = "high") -> Tensor:
    """Count log(value / median of its image) in fixed bins, (I, N) -> (I, BINS).

    For the low side the axis is mirrored, so that what is looked for lies on the right.
    """
    logs = values.double().clamp(min=1e-12).log()
    relative = logs - logs.median(dim=1, keepdim=True).values
    relative = relative if side == "high" else -relative
    bins = ((relative + REACH) / WIDTH).floor().clamp(0, BINS - 1).long()
    return torch.zeros(len(values), BINS).scatter_add_(1, bins, torch.ones_like(bins).float())


def _cut(counts: Tensor, fewest: int, chance: float) -> tuple[int, float] | None:
    """Find the first bin from which on the tail is unexplained, and how many tokens were expected.

    With S the share of tokens at or beyond a bin and h the hazard between the two quantiles of
    BULK, a log-concave hump obeys S(z) <= S(z1) exp(-h (z - z1)) for z beyond z1.
    """
    total = counts.sum()
    share = counts.flip(0).cumsum(0).flip(0) / total.clamp(min=1)
    first = int((share <= 1 - BULK[0]).int().argmax())
    second = max(int((share <= 1 - BULK[1]).int().argmax()), first + 1)
    if second >= BINS or share[second] <= 0:
        return None
    hazard = (share[first] / share[second]).log() / (second - first)  # per bin
    steps = torch.arange(BINS) - second
    bound = share[second] * (-hazard * steps).exp()
    nearest = torch.tensor(NEAREST).log() / WIDTH + BINS // 2
    fits = (
        (steps > 0)
        & (torch.arange(BINS) >= nearest)
        & (share * total >= fewest)
        & (share >= RAREST)
        & (share <= COMMONEST)
        & (share >= EXCESS * bound)
        & (torch.special.gammainc(share * total, bound * total) <= chance)  # P(Poisson >= count)
    )
    if not fits.any():
        return None
    chosen = _in_the_gap(counts, int(fits.int().argmax()))
    return chosen, float(bound[chosen] * total)


def _in_the_gap(counts: Tensor, first: int) -> int:
    """Move the cut to the middle of the widest empty stretch before the bulk of the tail."""
    tail = counts[first:].cumsum(0)
    filled = torch.cat([torch.tensor([0]), counts[first:].nonzero()[:, 0] + 1])
    filled = filled[filled <= int((tail >= tail[-1] / 2).int().argmax()) + 1]
    gaps = filled.diff() - 1
    if not len(gaps) or int(gaps.max()) * WIDTH < GAP:
        return first
    widest = int(gaps.argmax())
    return first + int(filled[widest]) + int(gaps[widest]) // 2


def _resampled(counts: Tensor, seed: int) -> Tensor:
    """Draw histograms (RESAMPLES, BINS) as other images, or other tokens of few images, give."""
    generator = torch.Generator().manual_seed(seed)
    if len(counts) >= FEW_IMAGES:
        drawn = torch.randint(len(counts), (RESAMPLES, len(counts)), generator=generator)
        weights = torch.zeros(RESAMPLES, len(counts)).scatter_add_(
            1, drawn, torch.ones_like(drawn).float()
        )
        return weights @ counts
    return torch.poisson(counts.sum(0).expand(RESAMPLES, -1), generator=generator)
