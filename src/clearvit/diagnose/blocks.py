"""Norm statistics of one block."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clearvit.diagnose.observe import Observations
from clearvit.tails import Side, Tail, find_tail

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
EDGES = torch.linspace(-2.0, 2.0, 161)  # of the stored histogram, in log2 of norm / median


@dataclass(frozen=True)
class BlockReport:
    """What the patch norms of one block look like, over all images."""

    index: int  # from 0
    median: float  # of the norms themselves
    quantiles: tuple[float, ...]  # of norm / median of the image, at QUANTILES
    largest: float  # norm / median of the image
    smallest: float
    histogram: tuple[float, ...]  # share of tokens per bin of EDGES; ends catch what lies beyond
    high: Tail | None
    low: Tail | None
    border: float | None  # flag rate on the border ring / inside; None where nothing is flagged
    recurring: float  # largest share of images in which the same place is flagged
    attention: float | None  # share of the class token's attention to patches, on flagged ones
    register_norms: tuple[float, ...]  # mean norm of each register / median patch norm

    def tail(self, side: Side) -> Tail | None:
        """The artifact tokens on one side."""
        return self.high if side == "high" else self.low

    def strength(self, side: Side) -> float:
        """How much of the block is wrong: share of tokens times how far they lie out."""
        tail = self.tail(side)
        if tail is None:
            return 0.0
        furthest = self.largest if side == "high" else 1 / max(self.smallest, 1e-12)
        return tail.fraction * float(torch.tensor(furthest).log())

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON holds it."""
        return asdict(self)


def block_report(seen: Observations, index: int, *, seed: int = 0) -> BlockReport:
    """Describe one block."""
    norms = seen.norms[:, index]
    relative = norms / norms.median(dim=1, keepdim=True).values.clamp(min=1e-12)
    high, low = (find_tail(norms, side, seed=seed) for side in ("high", "low"))
    flags = flagged(norms, high, low)
    quantiles = torch.quantile(_thinned(relative.flatten()), torch.tensor(QUANTILES))
    logs = relative.clamp(min=1e-12).log2().clamp(float(EDGES[0]), float(EDGES[-1]))
    histogram = torch.histogram(logs.flatten(), EDGES).hist / logs.numel()
    registers = seen.register_norms[:, index].mean(0) / norms.median()
    attention = None if seen.attention is None else seen.attention[:, index]
    return BlockReport(
        index=index,
        median=float(norms.median()),
        quantiles=tuple(quantiles.tolist()),
        largest=float(relative.max()),
        smallest=float(relative.min()),
        histogram=tuple(histogram.tolist()),
        high=high,
        low=low,
        border=border_preference(flags, seen.grid),
        recurring=float(flags.float().mean(0).max()),
        attention=_attention_share(attention, flags),
        register_norms=tuple(registers.tolist()),
    )


def flagged(norms: Tensor, high: Tail | None, low: Tail | None) -> Tensor:
    """Mark the artifact tokens on both sides, (I, N) -> (I, N) bool."""
    flags = torch.zeros_like(norms, dtype=torch.bool)
    for tail in (high, low):
        if tail is not None:
            flags |= tail.flags(norms)
    return flags


def border_preference(flags: Tensor, grid: tuple[int, int]) -> float | None:
    """Rate of flags on the border ring over the rate inside, (I, N) -> ratio.

    None where nothing is flagged or the grid has no inside.
    """
    ring = torch.ones(grid, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    border, inside = flags[:, ring.flatten()].float(), flags[:, ~ring.flatten()].float()
    if not flags.any() or not inside.numel():
        return None
    # half a flag added on both sides: a ratio, also where one side has none
    return float((border.sum() + 0.5) / border.numel() / ((inside.sum() + 0.5) / inside.numel()))


def _attention_share(attention: Tensor | None, flags: Tensor) -> float | None:
    if attention is None or not flags.any():
        return None
    return float((attention * flags).sum() / attention.sum())


def _thinned(values: Tensor, most: int = 1_000_000) -> Tensor:
    """Take every n-th value: torch.quantile refuses very long lists."""
    return values[:: -(-len(values) // most)]
