"""Entropic transport for many pairs at once: `solve_plans` is the entry.

First, over-relaxed Sinkhorn sweeps: a plain sweep shrinks the error of a pair by some rate;
over-relaxed sweeps with the factor that fits this rate need the root of their number (Thibault et
al., 2017; the rate is estimated as in Young's method of successive over-relaxation).

Pairs that these do not solve (sharp problems) get Newton steps (`solve_densities`). The plan is
written as T = u v A with a density A = exp(a + K + b) relative to the marginals, so a location
without mass needs no special case. Potentials a and b are kept in the log domain; sweeps run on
the kernel they span, which is as stable and much faster. A Newton step on the concave dual after a
few sweeps converges quadratically. With d the largest change of a + b that the step asks for,
log(1 + d) / d of it never descends.

Every pair stops on its own error, so its plan does not depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Over-relaxed sweeps
PLAIN = 5  # sweeps before the rate of a pair is estimated
REESTIMATED = (12, 20, 30, 42)  # sweeps after which it is estimated again
CHECKED = (9, 12, 15, 17, 19, 22, 26, 32, 40, 50, 64)  # sweeps at which pairs may stop
MEASURED = frozenset(
    [PLAIN - 1, PLAIN, *REESTIMATED, *(sweep - 3 for sweep in REESTIMATED), *CHECKED]
)
SPREAD = {torch.float32: 60.0, torch.float64: 500.0}  # of the log kernel; more would underflow
COMPACTED = 0.5  # fraction of finished pairs at which the others are copied together
LARGEST = 0.9999  # rate

# Newton steps
SWEEPS = 6  # between two Newton steps
ROUNDS = 200  # of sweeps and a Newton step; real patches at epsilon 0.05 need three to five
REACH = 25.0  # scalings stay within exp(-25) .. exp(25) until the potentials absorb them
HIGHEST = 35.0  # exponent; only a location without mass can ask for more, and must not overflow
SOFT = 30.0  # spread of the log kernel from which a pair is solved by annealing epsilon
STEEP = 600.0  # spread from which single precision is too coarse for the potentials
COOLING = 4.0
COOLED = 1e-4  # marginal error at which the next, colder problem starts
RIDGE = 16.0  # times the rounding unit, on the diagonal of the Newton system


@dataclass(frozen=True)
class Plans:
    """Plans of B pairs, and how they were found."""

    plan: Tensor  # (B, R, Q)
    residual: Tensor  # (B,): L1 distance of the row sums to u; column sums are exact
    iterations: Tensor  # (B,): sweeps and Newton steps
    solved: Tensor  # (B,) bool: by over-relaxed sweeps alone


@dataclass(frozen=True)
class Densities:
    """Densities of B solved pairs, relative to the marginals, and how they were found."""

    density: Tensor  # (B, R, Q)
    residual: Tensor  # (B,): as in Plans
    iterations: Tensor  # (B,)


@torch.no_grad()
def solve_plans(kernel: Tensor, u: Tensor, v: Tensor, *, tolerance: float) -> Plans:
    """Find plans diag(p) exp(kernel) diag(q) with row sums u and column sums v.

    Args:
        kernel: Logarithm of the kernel, (B, R, Q); -inf forbids a match.
        u: Row marginals, (B, R), not negative.
        v: Column marginals of the same total, (B, Q).
        tolerance: Marginal error at which a pair is finished, as a fraction of its total.
    """
    quick = solve_relaxed(kernel, u, v, tolerance=tolerance)
    if bool(quick.solved.all()):
        return quick
    rest = ~quick.solved
    sharp = solve_densities(kernel[rest], u[rest], v[rest], tolerance=tolerance)
    quick.plan[rest] = sharp.density * u[rest][..., None] * v[rest][:, None]
    quick.residual[rest] = sharp.residual
    quick.iterations[rest] += sharp.iterations
    return quick


def solve_relaxed(kernel: Tensor, u: Tensor, v: Tensor, *, tolerance: float) -> Plans:
    """Solve by over-relaxed sweeps alone; arguments as in `solve_plans`. Only `solved` count."""
    high = kernel.flatten(1).amax(1)[:, None, None]
    weights = (kernel - high).exp_()
    goal = tolerance * u.sum(1)
    p, q, iterations = _relaxed_sweeps(weights, u, v, goal)
    p, q = p[:, None], q[:, None]
    mirrored = weights.transpose(1, 2)
    positive = p @ weights + torch.finfo(weights.dtype).tiny
    q = (v[:, None] / positive).where(v[:, None] > 0, 0.0)
    rows = (p * (q @ mirrored)).squeeze(1)
    residual = (rows - u).abs().sum(1)
    solved = (residual <= goal) & ~_too_wide(kernel, high)
    plan = weights.mul_(p.transpose(1, 2)).mul_(q)
    return Plans(plan, residual, iterations, solved)


def _too_wide(kernel: Tensor, high: Tensor) -> Tensor:
    """Tell where exp(kernel - high) may have lost its smallest values, (B,) bool."""
    low = kernel.flatten(1).amin(1)
    if bool(low.isinf().any()):
        low = kernel.masked_fill(kernel == -torch.inf, torch.inf).flatten(1).amin(1)
    wide: Tensor = ~((high.flatten() - low) <= SPREAD[kernel.dtype])  # NaN is too wide
    return wide


def _relaxed_sweeps(
    weights: Tensor, u: Tensor, v: Tensor, goal: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scalings p (B, R) and q (B, Q) that include the marginals, and sweeps taken (B,)."""
    ends = torch.zeros_like(u), torch.zeros_like(v)
    taken = torch.full_like(goal, CHECKED[-1], dtype=torch.long)
    pairs = torch.arange(len(u), device=u.device)
    waiting = torch.ones_like(pairs, dtype=torch.bool)
    mirrored = weights.transpose(1, 2).contiguous()  # a row times a matrix is the fast product
    u, v, goal = u[:, None], v[:, None], goal[:, None, None]
    p, q, factor = u, v, torch.ones_like(goal)
    errors: dict[int, Tensor] = {}
    for sweep in range(1, CHECKED[-1] + 1):
        over = torch.bmm(q, mirrored)
        if sweep in MEASURED:
            errors[sweep] = _marginal_error(p, over, u)
        p = _relax(p, u / over, factor, sweep)
        over = torch.bmm(p, weights)
        if sweep in CHECKED:
            error = errors[sweep] + _marginal_error(q, over, v)
            ended = waiting & ((error <= goal) | (sweep == CHECKED[-1])).flatten()
            rows = pairs[ended]
            ends[0][rows], ends[1][rows], taken[rows] = p[ended, 0], q[ended, 0], sweep
            waiting = waiting & ~ended
            left = int(waiting.sum())
            if not left:
                break
            if left <= (1 - COMPACTED) * len(waiting):
                some = (pairs, goal, weights, mirrored, u, v, p, q, factor, over)
                pairs, goal, weights, mirrored, u, v, p, q, factor, over = (
                    t[waiting] for t in some
                )
                errors = {key: errors[key][waiting] for key in errors if key >= sweep - 3}
                waiting = waiting[waiting]
        q = _relax(q, v / over, factor, sweep)
        if sweep == PLAIN:
            factor = _best_factor(errors[sweep] / errors[sweep - 1])
        elif sweep in REESTIMATED:
            factor = _raise_factor(factor, errors[sweep], errors[sweep - 3])
    return *ends, taken


def _marginal_error(scaling: Tensor, over: Tensor, wanted: Tensor) -> Tensor:
    """L1 error of a marginal, (B, 1, 1)."""
    off: Tensor = torch.linalg.vector_norm(scaling * over - wanted, 1, dim=2, keepdim=True)
    return off


def _relax(scaling: Tensor, fitting: Tensor, factor: Tensor, sweep: int) -> Tensor:
    """Move a scaling to the fitting one, and beyond it by the factor.

    Along a line, not as a power: near the optimum that is the same, and takes no logarithms.
    """
    return fitting if sweep <= PLAIN else torch.lerp(scaling, fitting, factor).clamp_(min=0)


def _best_factor(rate: Tensor) -> Tensor:
    """The best over-relaxation for plain sweeps of a rate."""
    return 2 / (1 + (1 - rate.nan_to_num(0.0).clamp(0, LARGEST)).sqrt())


def _raise_factor(factor: Tensor, error: Tensor, before: Tensor) -> Tensor:
    """Raise the factor if the last three sweeps show a worse rate than was estimated."""
    seen = (error / before).nan_to_num(1.0).clamp(min=1e-9) ** (1 / 3)
    slower = (seen > factor - 1 + 0.05) & (seen < 1)
    rate = (seen + factor - 1) ** 2 / (seen * factor**2)
    return torch.where(slower, torch.maximum(factor, _best_factor(rate)), factor)


def solve_densities(kernel: Tensor, u: Tensor, v: Tensor, *, tolerance: float) -> Densities:
    """Find the density A with A v = 1 and A' u = 1 that is a rescaled exp(kernel), by Newton steps.

    Arguments as in `solve_plans`.
    """
    heat = _starting_heat(kernel)
    steep = heat.flatten() > STEEP / SOFT
    if kernel.dtype == torch.float32 and bool(steep.any()):
        return _solve_steep_in_double(kernel, u, v, steep, tolerance)
    density = torch.empty_like(kernel)
    residual = kernel.new_full(kernel.shape[:1], torch.nan)
    iterations = torch.zeros_like(residual, dtype=torch.long)
    pairs = torch.arange(len(kernel), device=kernel.device)
    a = -torch.logsumexp(kernel / heat + v.log()[:, None], dim=2)[..., None]
    b = -torch.logsumexp(kernel / heat + a + u.log()[..., None], dim=1)[:, None]
    for round_number in range(1, ROUNDS + 1):
        current = (kernel / heat + a + b).clamp_(max=HIGHEST).exp_()
        x, y = _sweep(current, u, v)
        current.mul_(x).mul_(y)
        rows = (current @ v[..., None]).squeeze(2)
        error = (u * (rows - 1).abs()).sum(1)
        converged = (error <= tolerance * u.sum(1)) & (heat.flatten() <= 1)
        done = converged | (round_number == ROUNDS) | ~error.isfinite()
        finished = pairs[done]
        density[finished], residual[finished] = current[done], error[done]
        iterations[finished] = round_number * (SWEEPS + 1) - 1
        if done.all():
            break
        if done.any():
            some = (pairs, kernel, u, v, heat, a, b, current, x, y, rows, error)
            pairs, kernel, u, v, heat, a, b, current, x, y, rows, error = (t[~done] for t in some)
        da, db = _newton(current, u, v, rows)
        a, b = a + x.log() + da, b + y.log() + db
        cooler = torch.where((error > COOLED * u.sum(1))[:, None, None], heat, heat / COOLING)
        cooler = cooler.clamp(min=1)
        a, b, heat = a * (heat / cooler), b * (heat / cooler), cooler
    return Densities(density, residual, iterations)


def _solve_steep_in_double(
    kernel: Tensor, u: Tensor, v: Tensor, steep: Tensor, tolerance: float
) -> Densities:
    """Solve the steep pairs in double precision and the others as they are."""
    easy = solve_densities(kernel[~steep], u[~steep], v[~steep], tolerance=tolerance)
    hard = solve_densities(*(t[steep].double() for t in (kernel, u, v)), tolerance=tolerance)
    density, residual = torch.empty_like(kernel), kernel.new_empty(len(kernel))
    iterations = torch.empty(len(kernel), dtype=torch.long, device=kernel.device)
    for part, chosen in ((easy, ~steep), (hard, steep)):
        density[chosen] = part.density.to(kernel.dtype)
        residual[chosen] = part.residual.to(kernel.dtype)
        iterations[chosen] = part.iterations
    return Densities(density, residual, iterations)


def _starting_heat(kernel: Tensor) -> Tensor:
    """By how much to divide the kernel at first, (B, 1, 1), so that the first sweeps converge."""
    finite = kernel.isfinite()
    high = kernel.masked_fill(~finite, -torch.inf).amax((1, 2), keepdim=True)
    low = kernel.masked_fill(~finite, torch.inf).amin((1, 2), keepdim=True)
    return ((high - low) / SOFT).nan_to_num(1.0).clamp(min=1)


def _sweep(kernel: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
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
