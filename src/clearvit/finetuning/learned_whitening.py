"""A projection in closed form: what varies between images that belong together counts less.

Learned whitening (Mikolajczyk and Matas, "Improving Descriptors for Fast Tree Matching by Optimal
Linear Projection", ICCV 2007; Radenovic et al., TPAMI 2018, Sec. 3.3): differences of matching
images are made to vary alike in all directions, then the directions in which images differ most are
kept. It is where a training begins, and often as good as its end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHRINKAGES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)  # tried; 1 is PCA
RIDGE = 0.1  # of the mean variance, where vectors follow a teacher's


def fit_whitening(vectors: Tensor, differences: Tensor, dimension: int, shrinkage: float) -> Tensor:
    """Fit a projection (dimension, C + 1), whose last column is the bias.

    Args:
        vectors: One per image, (N, C).
        differences: Of images that belong together, from each other or from their mean, (M, C).
        dimension: Directions to keep, at most C.
        shrinkage: How far their covariance is drawn towards an equal variance, 0 to 1.
    """
    wide, apart = vectors.double(), differences.double()
    covariance = apart.T @ apart / max(1, len(apart))
    even = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
    mixed = (1 - shrinkage) * covariance
    mixed.diagonal().add_(shrinkage * even)
    values, directions = torch.linalg.eigh(mixed)
    whiten = directions * values.clamp(min=1e-9 * even) ** -0.5  # (C, C)
    mean = wide.mean(0)
    spread = (wide - mean) @ whiten
    kept = torch.linalg.eigh(spread.T @ spread)[1].flip(1)[:, :dimension]
    matrix = (whiten @ kept).T
    matrix = matrix / (((wide - mean) @ matrix.T).norm(dim=1).mean() + 1e-12)
    return torch.cat([matrix, -(matrix @ mean)[:, None]], 1).float()


def fit_to_teacher(vectors: Tensor, targets: Tensor) -> Tensor:
    """Fit a projection (D, C + 1) of vectors (N, C) to a teacher's (N, D), by ridge regression."""
    wide, wanted = vectors.double(), targets.double()
    mean, middle = wide.mean(0), wanted.mean(0)
    centered = wide - mean
    gram = centered.T @ centered
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + 1e-12)
    matrix = torch.linalg.solve(gram, centered.T @ (wanted - middle)).T
    return torch.cat([matrix, (middle - matrix @ mean)[:, None]], 1).float()


def apply_projection(projection: Tensor, vectors: Tensor) -> Tensor:
    """Project vectors (N, C) to (N, D)."""
    return vectors @ projection[:, :-1].T + projection[:, -1]


def load_projection(projection: Tensor, layer: nn.Linear) -> None:
    """Write a projection into a linear layer."""
    with torch.no_grad():
        layer.weight.copy_(projection[:, :-1])
        layer.bias.copy_(projection[:, -1])
