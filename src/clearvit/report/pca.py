"""Features as colors: the first principal components of tokens as red, green and blue."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.errors import ModelError

ROBUST = (0.01, 0.99)  # quantiles that become 0 and 1, so that a few outliers cost no contrast
LEAST = 0.02  # of the cells, of a foreground that has colors of its own
FLAT = 1e-12  # variance, relative to the mean square, below which a component is rounding noise


@dataclass(frozen=True)
class PCA:
    """A basis fitted on some features, with which others can be colored too.

    A basis of raw tokens shows cured ones in the same colors. All tensors are float64.
    """

    mean: Tensor  # (C,)
    basis: Tensor  # (C, K), orthonormal columns, largest variance first
    low: Tensor  # (K,), becomes 0
    high: Tensor  # (K,), becomes 1; equal to `low` where nothing varies

    @staticmethod
    def fit(features: Tensor, *, components: int = 3) -> PCA:
        """Fit on features (n, C); exact and deterministic.

        A sign is arbitrary in a PCA; here the largest loading of every component is positive.

        Raises:
            ModelError: There are no features, or some are not finite.
        """
        values = _checked(features)
        mean = values.mean(dim=0)
        centered = values - mean
        variance, vectors = torch.linalg.eigh(centered.T @ centered / len(values))
        basis = vectors.flip(1)[:, :components]
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None]).sign()
        projected = centered @ basis
        low, high = (torch.quantile(projected, q, dim=0) for q in ROBUST)
        flat = variance.flip(0)[:components] <= FLAT * values.square().mean()
        return PCA(mean, basis, torch.where(flat, 0.0, low), torch.where(flat, 0.0, high))

    @staticmethod
    def fit_foreground(features: Tensor) -> PCA:
        """Fit on the foreground of a map (C, H, W), so that colors tell its parts apart."""
        return PCA.fit(features.flatten(1).T[foreground(features).flatten()])

    def project(self, features: Tensor) -> Tensor:
        """Give the components of features (..., C), as (..., K) float64."""
        return (features.detach().cpu().double() - self.mean) @ self.basis

    def apply(self, features: Tensor) -> Tensor:
        """Color features (..., C): (..., 3) float64 in 0..1.

        A component that does not vary is 0.5. A single component gives gray.
        """
        span = self.high - self.low
        scaled = (self.project(features) - self.low) / torch.where(span > 0, span, 1.0)
        channels = torch.where(span > 0, scaled, 0.5).clamp(0, 1)
        if channels.shape[-1] == 1:
            return channels.expand(*channels.shape[:-1], 3)
        missing = torch.full((*channels.shape[:-1], 3), 0.5, dtype=torch.float64)
        return torch.cat([channels, missing], dim=-1)[..., :3]


def foreground(features: Tensor) -> Tensor:
    """Tell the object of a map (C, H, W) from what is around it, (H, W) bool.

    The first principal component divides the cells in two at its mean; the foreground is the part
    that covers less of the border. It is the whole map where that part is tiny or all border.
    """
    grid = features.shape[1:]
    above = PCA.fit(features.flatten(1).T, components=1).project(features.permute(1, 2, 0)) > 0
    above = above[..., 0]
    border = torch.ones(grid, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    mask = above if above[border].double().mean() <= 0.5 else ~above
    return mask if mask.double().mean() >= LEAST else torch.ones(grid, dtype=torch.bool)


def _checked(features: Tensor) -> Tensor:
    if features.ndim != 2 or not len(features):
        raise ModelError(f"a PCA needs features (n, C), not {tuple(features.shape)}.")
    values = features.detach().cpu().double()
    if not bool(values.isfinite().all()):
        fraction = 1 - float(values.isfinite().all(dim=1).double().mean())
        raise ModelError(
            f"{fraction:.1%} of the tokens hold NaN or infinity, so they cannot be drawn; half"
            " precision often does this: run the model in float32."
        )
    return values
