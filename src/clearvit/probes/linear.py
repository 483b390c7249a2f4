"""Linear maps fitted to frozen features, with the same result in every run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LinearHead:
    """Scores of K outputs from C channels; a batch norm before it is folded in."""

    weight: Tensor  # (K, C)
    bias: Tensor  # (K,)

    def __call__(self, features: Tensor) -> Tensor:
        """Map features (…, C) to scores (…, K)."""
        return F.linear(features, self.weight.to(features.device), self.bias.to(features.device))

    def on_map(self, features: Tensor) -> Tensor:
        """Map features (B, C, H, W) to scores (B, K, H, W)."""
        scores: Tensor = self(features.movedim(1, -1)).movedim(-1, 1)
        return scores


def fold_scaling(weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor) -> LinearHead:
    """Let a head that was fitted to standardized features take raw features."""
    scaled = weight / deviation
    return LinearHead(scaled.detach(), (bias - scaled @ mean).detach())


def fit_logistic(
    x: Tensor, labels: Tensor, classes: int, *, penalty: float = 1e-3, steps: int = 100
) -> LinearHead:
    """Fit multinomial logistic regression.

    Minimizes mean cross-entropy + penalty / 2 * ||W||² for standardized features by L-BFGS from
    zero. The problem is convex: there is no seed and no learning rate.

    Args:
        x: Features, (M, C).
        labels: Class of each row from 0, (M,).
        classes: Number of classes K.
        penalty: Weight of the L2 penalty, above 0; the bias is not penalized.
        steps: Largest number of iterations.
    """
    mean = x.mean(0)
    deviation = _nonzero((x - mean).square().mean(0).sqrt())
    standard = (x - mean) / deviation
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=steps,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(F.linear(standard, weight, bias), labels)
        loss = loss + penalty / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    return fold_scaling(weight.detach(), bias.detach(), mean, deviation)


def fit_ridge(
    x: Tensor, y: Tensor, *, weights: Tensor | None = None, penalty: float = 1e-3
) -> LinearHead:
    """Fit ridge regression in closed form; see `Ridge`.

    Args:
        x: Features, (M, C).
        y: Targets, (M, K).
        weights: Non-negative weight of each row, (M,); all equal if None.
        penalty: Weight of the L2 penalty on standardized features.
    """
    ridge = Ridge(x.shape[1], y.shape[1])
    ridge.add(x, y, torch.ones(len(x)) if weights is None else weights)
    return ridge.solve(penalty)


class Ridge:
    """Ridge regression from sums, so that any number of rows fits into memory.

    Minimizes sum of w (y - W x - b)² / sum of w + penalty * ||W||² for standardized features.
    Several penalties can be solved for from the same sums.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self._total = torch.zeros((), dtype=torch.float64)
        self._moments = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        self._targets = torch.zeros(inputs + 1, outputs, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, weights: Tensor) -> None:
        """Add rows: features (M, C), targets (M, K), weights (M,)."""
        rows = F.pad(x.double().cpu(), (0, 1), value=1.0)
        weighted = rows * weights.double().cpu()[:, None]
        self._moments += weighted.T @ rows
        self._targets += weighted.T @ y.double().cpu()
        self._total += weights.double().cpu().sum()

    def solve(self, penalty: float = 1e-3) -> LinearHead:
        """Solve for the head of all rows added so far."""
        moments, targets = self._moments / self._total, self._targets / self._total
        mean, target_mean = moments[-1, :-1], targets[-1]
        covariance = moments[:-1, :-1] - torch.outer(mean, mean)
        deviation = _nonzero(covariance.diagonal().clamp(min=0).sqrt())
        scaled = covariance / torch.outer(deviation, deviation)
        correlation = (targets[:-1] - torch.outer(mean, target_mean)) / deviation[:, None]
        identity = torch.eye(len(mean), dtype=torch.float64)
        weight = torch.linalg.solve(scaled + penalty * identity, correlation).T
        head = fold_scaling(weight, target_mean, mean, deviation)
        return LinearHead(head.weight.float(), head.bias.float())


def fold_batch_norm(norm: nn.BatchNorm2d, conv: nn.Conv2d) -> LinearHead:
    """Fold a trained batch norm and 1 x 1 convolution into one linear head."""
    assert norm.running_mean is not None and norm.running_var is not None
    deviation = (norm.running_var + norm.eps).sqrt() / norm.weight
    mean = norm.running_mean - norm.bias * deviation
    assert conv.bias is not None
    head = fold_scaling(conv.weight[:, :, 0, 0], conv.bias, mean, deviation)
    return LinearHead(head.weight.cpu(), head.bias.cpu())


def _nonzero(deviation: Tensor) -> Tensor:
    """Do not scale constant channels; dividing by their rounding noise would blow it up."""
    return deviation.where(deviation > 1e-6 * deviation.max(), torch.ones_like(deviation))
