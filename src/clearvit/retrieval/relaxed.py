"""Entropic transport by over-relaxed Sinkhorn sweeps: the fast way for problems that are not sharp.

A plain sweep shrinks the error of a pair by some rate; over-relaxed sweeps with the factor that
fits this rate need the root of their number (Thibault et al., 2017; the rate is estimated as in
Young's method of successive over-relaxation). Sharp problems, and pairs that do not converge soon,
are left to `clearvit.retrieval.sinkhorn`, which takes Newton steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PLAIN = 5  # sweeps before the rate of a pair is judged
JUDGED = (12, 20, 30, 42)  # sweeps after which it is judged again
CHECKED = (9, 12, 15, 17, 19, 22, 26, 32, 40, 50, 64)  # sweeps, then give up
SPREAD = {torch.float32: 60.0, torch.float64: 500.0}  # of the log kernel; more would underflow
WORTH = 0.5  # share of finished pairs at which the others move together
LARGEST = 0.9999  # rate


@dataclass(frozen=True)
class Relaxed:
    """Plans of B pairs; only those that are solved count."""

    plan: Tensor  # (B, R, Q)
    residual: Tensor  # (B,): L1 distance of the row sums to u; column sums are exact
    iterations: Tensor  # (B,)
    solved: Tensor  # (B,) bool


def solve_relaxed(kernel: Tensor, u: Tensor, v: Tensor, *, tolerance: float) -> Relaxed:
    """Find plans diag(p) exp(kernel) diag(q) with row sums u and column sums v.

    Every pair has its own factor and stops on its own error, in any company.

    Args:
        kernel: Logarithm of the kernel, (B, R, Q); -inf forbids a match.
        u: Row marginals, (B, R), not negative.
        v: Column marginals of the same total, (B, Q).
        tolerance: Marginal error at which a pair is finished, as a share of its total.
    """
    high = kernel.flatten(1).amax(1)[:, None, None]
    weights = (kernel - high).exp_()
    goal = tolerance * u.sum(1)
    p, q, iterations = _swept(weights, u, v, goal)
    p, q = p[:, None], q[:, None]
    mirrored = weights.transpose(1, 2)
    q = (v[:, None] / _positive(p @ weights)).where(v[:, None] > 0, 0.0)
    rows = (p * (q @ mirrored)).squeeze(1)
    residual = (rows - u).abs().sum(1)
    solved = (residual <= goal) & ~_too_wide(kernel, high)
    plan = weights.mul_(p.transpose(1, 2)).mul_(q)
    return Relaxed(plan, residual, iterations, solved)


def _too_wide(kernel: Tensor, high: Tensor) -> Tensor:
    """Tell where exp(kernel - high) may have lost its smallest values, (B,) bool."""
    low = kernel.flatten(1).amin(1)
    if bool(low.isinf().any()):
        low = kernel.masked_fill(kernel == -torch.inf, torch.inf).flatten(1).amin(1)
    wide: Tensor = ~((high.flatten() - low) <= SPREAD[kernel.dtype])  # NaN is too wide
    return wide


def _swept(weights: Tensor, u: Tensor, v: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scalings p (B, R) and q (B, Q) that include the marginals, and sweeps taken (B,)."""
    ends = torch.zeros_like(u), torch.zeros_like(v)
    taken = torch.full_like(goal, CHECKED[-1], dtype=torch.long)
    pairs = torch.arange(len(u), device=u.device)
    waiting, left = torch.ones_like(pairs, dtype=torch.bool), len(pairs)
    mirrored = weights.transpose(1, 2).contiguous()  # a row times a matrix is the fast product
    u, v, goal = u[:, None], v[:, None], goal[:, None, None]
    p, q, factor = u, v, torch.ones_like(goal)
    errors: dict[int, Tensor] = {}
    for sweep in range(1, CHECKED[-1] + 1):
        over = torch.bmm(q, mirrored)
        if sweep in _LOOKED:
            errors[sweep] = _missed(p, over, u)
        p = _stretched(p, u / over, factor, sweep)
        over = torch.bmm(p, weights)
        if sweep in CHECKED:
            error = errors[sweep] + _missed(q, over, v)
            ended = waiting & ((error <= goal) | (sweep == CHECKED[-1])).flatten()
            count = int(ended.sum())
            if count:
                places = pairs[ended]
                ends[0][places], ends[1][places], taken[places] = p[ended, 0], q[ended, 0], sweep
                left -= count
                waiting = waiting & ~ended
            if not left:
                break
            if left <= (1 - WORTH) * len(waiting):
                some = (pairs, goal, weights, mirrored, u, v, p, q, factor, over)
                pairs, goal, weights, mirrored, u, v, p, q, factor, over = (
                    t[waiting] for t in some
                )
                errors = {key: errors[key][waiting] for key in errors if key >= sweep - 3}
                waiting = waiting[waiting]
        q = _stretched(q, v / over, factor, sweep)
        if sweep == PLAIN:
            factor = _fitting(errors[sweep] / errors[sweep - 1])
        elif sweep in JUDGED:
            factor = _refitted(factor, errors[sweep], errors[sweep - 3])
    return *ends, taken


_LOOKED = frozenset([PLAIN - 1, PLAIN, *JUDGED, *(j - 3 for j in JUDGED), *CHECKED])


def _missed(scaling: Tensor, over: Tensor, wanted: Tensor) -> Tensor:
    """L1 error of a marginal, (B, 1, 1)."""
    off: Tensor = torch.linalg.vector_norm(scaling * over - wanted, 1, dim=2, keepdim=True)
    return off


def _stretched(scaling: Tensor, fitting: Tensor, factor: Tensor, sweep: int) -> Tensor:
    """Move a scaling to the fitting one, and beyond it by the factor.

    Along a line, not as a power: near the optimum that is the same, and takes no logarithms.
    """
    return fitting if sweep <= PLAIN else torch.lerp(scaling, fitting, factor).clamp_(min=0)


def _positive(values: Tensor) -> Tensor:
    return values + torch.finfo(values.dtype).tiny


def _fitting(rate: Tensor) -> Tensor:
    """The best factor for plain sweeps of a rate."""
    return 2 / (1 + (1 - rate.nan_to_num(0.0).clamp(0, LARGEST)).sqrt())


def _refitted(factor: Tensor, error: Tensor, before: Tensor) -> Tensor:
    """Raise the factor if the last three sweeps say that the rate is worse than was thought."""
    seen = (error / before).nan_to_num(1.0).clamp(min=1e-9) ** (1 / 3)
    slower = (seen > factor - 1 + 0.05) & (seen < 1)
    rate = (seen + factor - 1) ** 2 / (seen * factor**2)
    return torch.where(slower, torch.maximum(factor, _fitting(rate)), factor)
