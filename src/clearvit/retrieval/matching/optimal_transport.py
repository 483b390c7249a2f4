"""Optimal transport between the patches of two images.

Entropic transport after Cuturi (2013), with partial transport by one dummy location per image as
in Zhang, Liwicki and Cipolla, "Beyond the CLS Token: Image Reranking using Pretrained Vision
Transformers" (BMVC 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.retrieval.matching.mass import estimate_mass
from clearvit.retrieval.matching.sinkhorn import newton_columns, solve_densities, solve_plans

CHUNK = 2**19  # matches solved at once by each thread; more would leave the cache
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-11}


@dataclass(frozen=True)
class TransportResult:
    """Plans of one or many pairs; leading dimensions are those of the similarity."""

    plan: Tensor  # (..., R, Q): mass moved from each row location to each column location
    score: Tensor  # (...): sum of plan x similarity
    mass: Tensor  # (...): fraction of the mass to be moved
    residual: Tensor  # (...): L1 error of the marginals, the unmoved mass counted as a location
    converged: Tensor  # (...) bool
    iterations: Tensor  # (...)
    degenerate: Tensor  # (...) bool: weights were zero everywhere and were taken as uniform
    u: Tensor  # (..., R): row weights, sum 1
    v: Tensor  # (..., Q): column weights, sum 1

    @property
    def complete_plan(self) -> Tensor:
        """The plan with what it did not move spread over all that is left, (..., R, Q).

        Its row sums are u and its column sums v whatever the mass, so sums of plan x similarity
        can be compared between pairs of different mass: what has no counterpart counts as matched
        at random.
        """
        rows = (self.u - self.plan.sum(-1)).clamp(min=0)
        columns = (self.v - self.plan.sum(-2)).clamp(min=0)
        left = columns.sum(-1).clamp(min=torch.finfo(columns.dtype).tiny)
        return self.plan + rows[..., :, None] * columns[..., None, :] / left[..., None, None]


def transport(
    similarity: Tensor,
    u: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 0.05,
    mass: float | Tensor | Literal["auto"] = 1.0,
    *,
    tolerance: float | None = None,
) -> TransportResult:
    """Match the locations of image pairs by entropic, optionally partial, optimal transport.

    Maximizes <T, S> + epsilon H(T) over plans with row sums u and column sums v. With mass s < 1
    each image gets a dummy location of mass 1 - s that takes what is not matched, and the entropy
    of what it takes counts too. The result of a pair does not depend on the rest of the batch.
    Gradients are those of the exact optimum, first order only.

    Args:
        similarity: S, (..., R, Q), of any scale; cosines in re-ranking.
        u: Row weights (..., R), not negative; only their ratios matter. Uniform if None.
        v: Column weights (..., Q), likewise.
        epsilon: Strength of the entropy, in units of the similarity.
        mass: Fraction of the mass to move, 0 < s <= 1, one number or one per pair (...). "auto"
            estimates per pair which fraction has a counterpart (`estimate_mass`).
        tolerance: Marginal error at which a pair is finished; 1e-6 in float32, 1e-11 in float64.
    """
    _check_inputs(similarity, u, v, epsilon)
    dtype = similarity.dtype if similarity.dtype in TOLERANCE else torch.float32
    similarity = similarity.to(dtype)
    lead, (rows, columns) = similarity.shape[:-2], similarity.shape[-2:]
    u, empty_u = _normalize(u, lead, rows, similarity)
    v, empty_v = _normalize(v, lead, columns, similarity)
    flat = similarity.reshape(-1, rows, columns)
    fraction = _fractions(mass, lead, flat, u, v)
    goal = TOLERANCE[dtype] if tolerance is None else tolerance
    plan, residual, iterations = _solve(flat, u, v, fraction, epsilon, goal)
    total = 2 - fraction.detach()
    return TransportResult(
        plan=plan.reshape(similarity.shape),
        score=(plan * flat).sum((1, 2)).reshape(lead),
        mass=fraction.reshape(lead),
        residual=residual.reshape(lead),
        converged=(residual <= goal * total).reshape(lead),
        iterations=iterations.reshape(lead),
        degenerate=(empty_u | empty_v).reshape(lead),
        u=u.reshape(*lead, rows),
        v=v.reshape(*lead, columns),
    )


def _solve(
    similarity: Tensor, u: Tensor, v: Tensor, fraction: Tensor, epsilon: float, tolerance: float
) -> tuple[Tensor, ...]:
    """Solve pairs in chunks that fit the caches of the cores."""
    size = max(1, torch.get_num_threads() * CHUNK // similarity.shape[1:].numel())
    chunks = zip(*(t.split(size) for t in (similarity, u, v, fraction)), strict=True)
    parts = [_solve_chunk(s, a, b, m, epsilon, tolerance) for s, a, b, m in chunks]
    return tuple(torch.cat(t) if len(t) > 1 else t[0] for t in zip(*parts, strict=True))


def _solve_chunk(
    similarity: Tensor, u: Tensor, v: Tensor, fraction: Tensor, epsilon: float, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Plan (B, R, Q), residual and iterations (B,) of one chunk of pairs."""
    partial = bool((fraction < 1).any())
    kernel = similarity / epsilon
    if partial:
        u = torch.cat([u, 1 - fraction[:, None]], 1)
        v = torch.cat([v, 1 - fraction[:, None]], 1)
        middle = kernel.detach().mean((1, 2))[:, None, None]  # any constant gives the same plan
        kernel = F.pad(kernel - middle, (0, 1, 0, 1))
    logits = kernel.detach()
    if partial:
        logits = logits.clone()
        logits[:, -1, -1] = -torch.inf
    if torch.is_grad_enabled() and any(t.requires_grad for t in (kernel, u, v)):
        with torch.no_grad():
            found = solve_densities(logits, u.detach(), v.detach(), tolerance=tolerance)
        density = _attach_gradients(found.density, kernel, u, v)
        plan = density * u[..., None] * v[:, None]
        residual, iterations = found.residual, found.iterations
    else:
        solved = solve_plans(logits, u, v, tolerance=tolerance)
        plan, residual, iterations = solved.plan, solved.residual, solved.iterations
    if partial:
        plan = plan[:, :-1, :-1]
    return plan, residual, iterations


def _attach_gradients(density: Tensor, kernel: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Attach the derivative of the optimum: one Newton step from it, on a frozen system."""
    moved = density * (kernel - kernel.detach()).exp()
    over_rows = (moved @ v[..., None]).squeeze(2) - 1
    over_columns = (u[:, None] @ moved).squeeze(1) - 1
    fixed_u, fixed_v = u.detach(), v.detach()
    right = (fixed_u * over_rows)[:, None] @ density
    db = newton_columns(density, fixed_u, fixed_v, right.squeeze(1) - over_columns)
    da = -over_rows - (density @ (fixed_v * db)[..., None]).squeeze(2)
    return moved * (da[..., None] + db[:, None]).exp()


def _normalize(
    weights: Tensor | None, lead: torch.Size, count: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights (B, count) that sum to 1, and whether they were zero everywhere, (B,)."""
    if weights is None:
        weights = like.new_ones(count)
    weights = weights.to(like).expand(*lead, count).reshape(-1, count)
    total = weights.sum(1, keepdim=True)
    empty = total == 0
    filled = torch.where(empty, 1.0, weights)
    return filled / filled.sum(1, keepdim=True), empty.squeeze(1)


def _fractions(
    mass: float | Tensor | str, lead: torch.Size, similarity: Tensor, u: Tensor, v: Tensor
) -> Tensor:
    if isinstance(mass, str):
        if mass != "auto":
            raise ModelError(f"mass is '{mass}'; use a number in (0, 1] or 'auto'.")
        return estimate_mass(similarity, u, v)
    fraction = (
        torch.as_tensor(mass, dtype=similarity.dtype, device=similarity.device)
        .expand(lead)
        .reshape(-1)
    )
    if not bool(((fraction > 0) & (fraction <= 1)).all()):
        raise ModelError(f"mass must lie in (0, 1]; got {fraction.min():g} to {fraction.max():g}.")
    return fraction


def _check_inputs(similarity: Tensor, u: Tensor | None, v: Tensor | None, epsilon: float) -> None:
    if similarity.ndim < 2 or 0 in similarity.shape[-2:]:
        raise ModelError(
            f"similarity must be (..., R, Q) with locations on both sides, not"
            f" {tuple(similarity.shape)}."
        )
    if not epsilon > 0:
        raise ModelError(f"epsilon is {epsilon}; use a positive number, such as 0.05 for cosines.")
    for name, weights, count in (("u", u, -2), ("v", v, -1)):
        if weights is None:
            continue
        if weights.shape[-1] != similarity.shape[count]:
            raise ModelError(
                f"{name} has {weights.shape[-1]} weights for {similarity.shape[count]} locations;"
                " u weighs the rows of the similarity, v its columns."
            )
        if bool((weights < 0).any()):
            raise ModelError(f"{name} has negative weights; use weights.clamp(min=0).")
