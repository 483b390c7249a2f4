import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.retrieval.matching import sinkhorn
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.matching.sinkhorn import CHECKED, solve_densities, solve_relaxed


def problem(pairs=6, rows=7, columns=5, scale=8.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    kernel = scale * torch.randn(pairs, rows, columns, generator=generator, dtype=torch.float64)
    u, v = (torch.rand(pairs, n, generator=generator).double() + 0.05 for n in (rows, columns))
    return kernel, u / u.sum(1, keepdim=True), v / v.sum(1, keepdim=True)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.01, 6), st.integers(0, 99))
def test_what_is_solved_is_what_newton_steps_find(rows, columns, scale, seed):
    kernel, u, v = problem(4, rows, columns, scale, seed)
    u[0, 0] = 0
    u = u / u.sum(1, keepdim=True).clamp(min=1e-9)
    if rows == 1:
        u[0, 0] = 1
    found = solve_relaxed(kernel, u, v, tolerance=1e-11)
    sure = solve_densities(kernel, u, v, tolerance=1e-11)
    plan = sure.density * u[..., None] * v[:, None]
    torch.testing.assert_close(found.plan[found.solved], plan[found.solved], atol=1e-9, rtol=0)
    assert (found.residual[found.solved] <= 1e-11).all()


def test_mild_problems_are_solved_and_fewer_sweeps_are_needed_than_by_plain_ones():
    kernel, u, v = problem(20, 30, 30, scale=3.0)
    found = solve_relaxed(kernel, u, v, tolerance=1e-9)
    assert found.solved.all() and found.iterations.max() < CHECKED[-1]
    weights, p, q = kernel.exp(), u, v
    plain = torch.zeros(20)
    for _ in range(400):
        p = u / (weights @ q[..., None]).squeeze(2)
        error = (p * (weights @ q[..., None]).squeeze(2) - u).abs().sum(1)
        q = v / (p[:, None] @ weights).squeeze(1)
        error = (p * (weights @ q[..., None]).squeeze(2) - u).abs().sum(1)
        plain += error > 1e-9
    assert found.iterations.double().mean() < plain.mean()


def test_wide_kernels_and_nan_are_left_to_newton_steps():
    kernel, u, v = problem(3, scale=0.1)
    kernel[0, 0, 0] -= 1000
    kernel[1] = torch.nan
    found = solve_relaxed(kernel, u, v, tolerance=1e-9)
    assert found.solved.tolist() == [False, False, True]
    kernel, u, v = (t[2:].float() for t in (kernel, u, v))
    forbidden = kernel.clone()
    forbidden[:, 0, 0] = -torch.inf  # one forbidden match does not make a kernel wide
    assert solve_relaxed(forbidden, u, v, tolerance=1e-6).solved.all()


def test_both_ways_give_the_same_plans(monkeypatch):
    similarity = torch.rand(8, 12, 9)
    quick = transport(similarity, mass=0.6)
    monkeypatch.setattr(sinkhorn, "SPREAD", {torch.float32: -1.0})
    sure = transport(similarity, mass=0.6)
    assert quick.converged.all() and sure.converged.all()
    torch.testing.assert_close(quick.plan, sure.plan, atol=1e-6, rtol=0)
    assert float(quick.plan.sum((1, 2)).mean()) == pytest.approx(0.6, abs=1e-5)
