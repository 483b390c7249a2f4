"""Features as colours: the first principal components of tokens as red, green and blue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.errors import ModelError

ROBUST = (0.01, 0.99)  # quantiles that become 0 and 1, so that a few outliers cost no contrast
FLAT = 1e-12  # variance, relative to the mean square, below which a component is rounding noise
BACKGROUND = 1.0  # white


@dataclass(frozen=True)
class PCA:
    """A basis fitted on some features, with which others can be coloured too.

    A basis of raw tokens shows cured ones in the same colours. All tensors are float64.
    """

    mean: Tensor  # (C,)
    basis: Tensor  # (C, K), orthonormal columns, largest variance first
    low: Tensor  # (K,), becomes 0
    high: Tensor  # (K,), becomes 1; equal to `low` where nothing varies

    @staticmethod
    def fit(features: Tensor, *, components: int = 3) -> PCA:
        """Fit on features (n, C); exact and without chance.

        A sign is arbitrary in a PCA; here the largest loading of every component is positive.

        Raises:
            ModelError: There are no features, or some are not finite.
        """
        values = _checked(features)
        mean = values.mean(dim=0)
        centred = values - mean
        variance, vectors = torch.linalg.eigh(centred.T @ centred / len(values))
        basis = vectors.flip(1)[:, :components]
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None]).sign()
        projected = centred @ basis
        low, high = (torch.quantile(projected, q, dim=0) for q in ROBUST)
        flat = variance.flip(0)[:components] <= FLAT * values.square().mean()
        return PCA(mean, basis, torch.where(flat, 0.0, low), torch.where(flat, 0.0, high))

    def project(self, features: Tensor) -> Tensor:
        """Give the components of features (..., C), as (..., K) float64."""
        return (features.detach().cpu().double() - self.mean) @ self.basis

    def apply(self, features: Tensor) -> Tensor:
        """Colour features (..., C): (..., 3) float64 in 0..1.

        A component that does not vary is 0.5. A single component gives grey.
        """
        span = self.high - self.low
        scaled = (self.project(features) - self.low) / torch.where(span > 0, span, 1.0)
        channels = torch.where(span > 0, scaled, 0.5).clamp(0, 1)
        if channels.shape[-1] == 1:
            return channels.expand(*channels.shape[:-1], 3)
        missing = torch.full((*channels.shape[:-1], 3), 0.5, dtype=torch.float64)
        return torch.cat([channels, missing], dim=-1)[..., :3]


def pca_pictures(
    maps: Sequence[Tensor], *, components: int = 3, foreground: bool = False
) -> list[NDArray[np.float64]]:
    """Colour several feature maps in one common basis, so equal colours mean equal features.

    Args:
        maps: Maps (C, H, W); the grids may differ, the channels C may not.
        components: 1 gives grey pictures, 3 colours.
        foreground: Fit on the foreground only and leave the background white. Foreground is the
            side of the first component, cut in two by Otsu's rule, that keeps off the borders.

    Returns:
        Pictures (H, W, 3) in 0..1, in the order of the maps.
    """
    if not maps:
        return []
    if not 1 <= components <= 3:
        raise ModelError(f"a picture has 1 to 3 components, not {components}.")
    rows = [m.detach().cpu().flatten(1).T for m in maps]
    pooled = torch.cat(rows)
    chosen = _foreground(maps, pooled) if foreground else torch.ones(len(pooled), dtype=torch.bool)
    pca = PCA.fit(pooled[chosen], components=components)
    colours = torch.where(chosen[:, None], pca.apply(pooled), BACKGROUND)
    parts = torch.split(colours, [len(r) for r in rows])
    return [p.unflatten(0, m.shape[1:]).numpy() for p, m in zip(parts, maps, strict=True)]


def _foreground(maps: Sequence[Tensor], pooled: Tensor) -> Tensor:
    """Mark the rows of `pooled` (n, C) that belong to the objects; never none of them."""
    first = PCA.fit(pooled, components=1).project(pooled)[:, 0]
    side = first > otsu(first)
    border = torch.cat([_border(m.shape[1], m.shape[2]).flatten() for m in maps])
    if side[border].double().mean() > side.double().mean():
        side = ~side
    return side if bool(side.any()) else ~side


def otsu(values: Tensor) -> float:
    """Find the cut of (n,) values that leaves the least variance on both sides (Otsu, 1979)."""
    ordered = values.sort().values
    below = torch.arange(1, len(ordered), dtype=torch.float64)
    if not len(below):
        return float(ordered[0])
    sums = ordered.cumsum(0)
    above = len(ordered) - below
    means = sums[:-1] / below - (sums[-1] - sums[:-1]) / above
    best = int((below * above * means.square()).argmax())
    return float(ordered[best : best + 2].mean())


def _border(height: int, width: int) -> Tensor:
    border = torch.ones(height, width, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    return border


def _checked(features: Tensor) -> Tensor:
    if features.ndim != 2 or not len(features):
        raise ModelError(f"a PCA needs features (n, C), not {tuple(features.shape)}.")
    values = features.detach().cpu().double()
    if not bool(values.isfinite().all()):
        share = 1 - float(values.isfinite().all(dim=1).double().mean())
        raise ModelError(
            f"{share:.1%} of the tokens hold NaN or infinity, so they have no picture; half"
            " precision often does this: run the model in float32."
        )
    return values
