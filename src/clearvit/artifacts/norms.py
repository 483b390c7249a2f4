"""Norm statistics of one block."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.observe import Observations
from clearvit.artifacts.outliers import (
    SIDES,
    Outliers,
    Side,
    combine_masks,
    find_outliers,
    relative_norms,
)

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
    histogram: tuple[float, ...]  # fraction of tokens per bin of EDGES; the ends hold the rest
    high: Outliers | None
    low: Outliers | None
    border: float | None  # outlier rate on the border ring / inside; None without outliers
    recurring: float  # largest fraction of images in which one position is an outlier
    attention: float | None  # fraction of the class token's attention to patches on outliers
    register_norms: tuple[float, ...]  # mean norm of each register / median patch norm

    def outliers(self, side: Side) -> Outliers | None:
        """Give the outliers on one side."""
        return self.high if side == "high" else self.low

    def strength(self, side: Side) -> float:
        """Give the fraction of outliers times the log of the most extreme relative norm."""
        found = self.outliers(side)
        if found is None:
            return 0.0
        furthest = self.largest if side == "high" else 1 / max(self.smallest, 1e-12)
        return found.fraction * float(torch.tensor(furthest).log())

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON holds it."""
        return asdict(self)


def block_report(seen: Observations, index: int, *, seed: int = 0) -> BlockReport:
    """Describe one block."""
    norms = seen.norms[:, index]
    relative = relative_norms(norms)
    high, low = (find_outliers(norms, side, seed=seed) for side in SIDES)
    mask = combine_masks(norms, (high, low))
    quantiles = torch.quantile(_subsample(relative.flatten()), torch.tensor(QUANTILES))
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
        border=border_preference(mask, seen.grid),
        recurring=float(mask.float().mean(0).max()),
        attention=_attention_fraction(attention, mask),
        register_norms=tuple(registers.tolist()),
    )


def border_preference(mask: Tensor, grid: tuple[int, int]) -> float | None:
    """Divide the outlier rate on the border ring by the rate inside, (I, N) bool -> ratio.

    None without outliers or where the grid has no inside.
    """
    ring = torch.ones(grid, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    border, inside = mask[:, ring.flatten()].float(), mask[:, ~ring.flatten()].float()
    if not mask.any() or not inside.numel():
        return None
    # half an outlier added on both sides, so that the ratio is finite where one has none
    return float((border.sum() + 0.5) / border.numel() / ((inside.sum() + 0.5) / inside.numel()))


def _attention_fraction(attention: Tensor | None, mask: Tensor) -> float | None:
    if attention is None or not mask.any():
        return None
    return float((attention * mask).sum() / attention.sum())


def _subsample(values: Tensor, most: int = 1_000_000) -> Tensor:
    """Take every n-th value: torch.quantile refuses very long lists."""
    return values[:: -(-len(values) // most)]
