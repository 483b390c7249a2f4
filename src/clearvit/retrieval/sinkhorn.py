"""Entropic transport for many pairs at once: Sinkhorn sweeps, sharpened by Newton steps.

The plan is written as T = u v A with a density A = exp(a + K + b) relative to the marginals, so a
location without mass needs no special case. Potentials a and b are kept in the log domain; sweeps
run on the kernel they span, which is as stable and much faster. Sinkhorn alone converges slowly
where plans are sharp; a Newton step on the concave dual after a few sweeps converges quadratically.
With d the largest change of a + b that the step asks for, log(1 + d) / d of it never descends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SWEEPS = 6  # between two Newton steps
ROUNDS = 200  # of sweeps and a Newton step; real patches at epsilon 0.05 need three to five
REACH = 25.0  # scalings stay within exp(-25) .. exp(25) until the potentials absorb them
HIGHEST = 35.0  # exponent; only a location without mass can ask for more, and must not overflow
SOFT = 30.0  # spread of the log kernel from which a pair is solved by cooling
STEEP = 600.0  # spread from which single precision is too coarse for the potentials
COOLING = 4.0
COOLED = 1e-4  # marginal error at which the next, colder problem starts
RIDGE = 16.0  # times the rounding unit, on the diagonal of the Newton system


@dataclass(frozen=True)
class Solution:
    """Densities of B solved pairs, relative to the marginals, and how they were found."""

    density: Tensor  # (B, R, Q)
    residual: Tensor  # (B,): L1 distance of the plan's row sums to u; column sums are exact
    iterations: Tensor  # (B,): sweeps and Newton steps


def solve(kernel: Tensor, u: Tensor, v: Tensor, *, tolerance: float) -> Solution:
    """Find the density A with A v = 1 and A' u = 1 that is a rescaled exp(kernel).

    Every pair stops on its own error and takes the same steps in any company.

    Args:
        kernel: Logarithm of the kernel, (B, R, Q); -inf forbids a match.
        u: Row marginals, (B, R), not negative.
        v: Column marginals of the same total, (B, Q).
        tolerance: Marginal error at which a pair is finished, as a share of its total.
    """
    heat = _starting_heat(kernel)
    steep = heat.flatten() > STEEP / SOFT
    if kernel.dtype == torch.float32 and bool(steep.any()):
        return _solved_apart(kernel, u, v, steep, tolerance)
    density = torch.empty_like(kernel)
    residual = kernel.new_full(kernel.shape[:1], torch.nan)
    iterations = torch.zeros_like(residual, dtype=torch.long)
    pairs = torch.arange(len(kernel), device=kernel.device)
    a = -torch.logsumexp(kernel / heat + v.log()[:, None], dim=2)[..., None]
    b = -torch.logsumexp(kernel / heat + a + u.log()[..., None], dim=1)[:, None]
    for round_number in range(1, ROUNDS + 1):
        current = (kernel / heat + a + b).clamp_(max=HIGHEST).exp_()
        x, y = _swept(current, u, v)
        current.mul_(x).mul_(y)
        rows = (current @ v[..., None]).squeeze(2)
        error = (u * (rows - 1).abs()).sum(1)
        small = tolerance * u.sum(1)
        last = (round_number == ROUNDS) | ~error.isfinite()
        done = ((error <= small) & (heat.flatten() <= 1)) | last
        if done.any() or not len(done):
            finished = pairs[done]
            density[finished], residual[finished] = current[done], error[done]
            iterations[finished] = round_number * (SWEEPS + 1) - 1
            if done.all():
                break
            on = ~done
            pairs, kernel, u, v, heat, a, b = (t[on] for t in (pairs, kernel, u, v, heat, a, b))
            current, x, y, rows, error = (t[on] for t in (current, x, y, rows, error))
        da, db = _newton(current, u, v, rows)
        a, b = a + x.log() + da, b + y.log() + db
        cooler = torch.where((error > COOLED * u.sum(1))[:, None, None], heat, heat / COOLING)
        cooler = cooler.clamp(min=1)
        a, b, heat = a * (heat / cooler), b * (heat / cooler), cooler
    return Solution(density, residual, iterations)


def _solved_apart(
    kernel: Tensor, u: Tensor, v: Tensor, steep: Tensor, tolerance: float
) -> Solution:
    """Solve the steep pairs in double precision and the others as they are."""
    easy = solve(kernel[~steep], u[~steep], v[~steep], tolerance=tolerance)
    hard = solve(*(t[steep].double() for t in (kernel, u, v)), tolerance=tolerance)
    density, residual = torch.empty_like(kernel), kernel.new_empty(len(kernel))
    iterations = torch.empty(len(kernel), dtype=torch.long, device=kernel.device)
    for part, chosen in ((easy, ~steep), (hard, steep)):
        density[chosen] = part.density.to(kernel.dtype)
        residual[chosen] = part.residual.to(kernel.dtype)
        iterations[chosen] = part.iterations
    return Solution(density, residual, iterations)


def _starting_heat(kernel: Tensor) -> Tensor:
    """By how much to divide the kernel at first, (B, 1, 1), so that the first sweeps converge."""
    finite = kernel.isfinite()
    high = kernel.masked_fill(~finite, -torch.inf).amax((1, 2), keepdim=True)
    low = kernel.masked_fill(~finite, torch.inf).amin((1, 2), keepdim=True)
    return ((high - low) / SOFT).nan_to_num(1.0).clamp(min=1)


def _swept(kernel: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows and columns in turn; the factors (B, R, 1) and (B, 1, Q)."""
    low, high = torch.exp(torch.tensor([-REACH, REACH])).tolist()
    mirrored = kernel.transpose(1, 2)
    u, v = u[..., None], v[..., None]
    y = torch.ones_like(v)
    for _ in range(SWEEPS):
        x = (kernel @ (v * y)).reciprocal_().clamp_(low, high)
        y = (mirrored @ (u * x)).reciprocal_().clamp_(low, high)
    return x, y.transpose(1, 2)


def _newton(density: Tensor, u: Tensor, v: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Damped Newton step for potentials (B, R, 1) and (B, 1, Q) whose column sums are exact."""
    missing = 1 - rows
    db = newton_columns(density, u / rows, v, -(density * (u / rows * missing)[..., None]).sum(1))
    da = (missing - (density @ (v * db)[..., None]).squeeze(2)) / rows
    ups = [_over_support(d, m, -torch.inf).amax(1) for d, m in ((da, u), (db, v))]
    downs = [_over_support(d, m, torch.inf).amin(1) for d, m in ((da, u), (db, v))]
    change = torch.maximum(ups[0] + ups[1], -downs[0] - downs[1]).clamp(min=1e-12)
    step = (change.log1p() / change).nan_to_num(0.0)[:, None]
    return (step * da).nan_to_num(0.0)[..., None], (step * db).nan_to_num(0.0)[:, None]


def _over_support(values: Tensor, mass: Tensor, otherwise: float) -> Tensor:
    return values.masked_fill(mass == 0, otherwise)


def newton_columns(density: Tensor, u: Tensor, v: Tensor, right: Tensor) -> Tensor:
    """Solve (I - A' U A V) d = right for d (B, Q), which is 0 where v is.

    Scaled by the root of v the system is symmetric; its null vector, a constant moved from one
    potential to the other, is filled in.
    """
    root = v.sqrt()
    scaled = density * u.sqrt()[..., None] * root[:, None]
    system = scaled.transpose(1, 2) @ scaled
    system = (root / v.sum(1, keepdim=True))[..., None] * root[:, None] - system
    system.diagonal(dim1=1, dim2=2).add_(1 + RIDGE * torch.finfo(density.dtype).eps)
    factor, _ = torch.linalg.cholesky_ex(system)
    solved = torch.cholesky_solve((root * right)[..., None], factor).squeeze(2)
    return torch.where(v > 0, solved / root.clamp(min=torch.finfo(v.dtype).tiny), 0.0)
