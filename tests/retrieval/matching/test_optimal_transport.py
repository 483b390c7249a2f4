import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.retrieval.matching.optimal_transport import transport
from tests.helpers import GOLDEN

MARGINALS = ["uniform", "cc", "cls_attention"]


def golden(number, marginal, dtype=torch.float64):
    arrays = np.load(GOLDEN / f"transport_{number}.npz")
    tensors = [arrays["similarity"], arrays[f"{marginal}.u"], arrays[f"{marginal}.v"]]
    return arrays, *(torch.from_numpy(t).to(dtype) for t in tensors)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("marginal", MARGINALS)
def test_full_transport_is_that_of_pot(number, marginal):
    arrays, similarity, u, v = golden(number, marginal)
    found = transport(similarity, u, v)
    assert found.converged.all() and found.residual.max() < 1e-10
    np.testing.assert_allclose(found.score, arrays[f"{marginal}.score"], atol=1e-8)
    plan = found.plan[int(arrays[f"{marginal}.plan_at"])]
    np.testing.assert_allclose(plan, arrays[f"{marginal}.plan"], atol=1e-9)
    single = transport(similarity.float(), u.float(), v.float())
    assert single.converged.all()
    np.testing.assert_allclose(single.score, arrays[f"{marginal}.score"], atol=1e-5)


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("marginal", MARGINALS)
def test_partial_transport_is_the_converged_dummy_form(number, marginal):
    arrays, similarity, u, v = golden(number, marginal)
    for row, mass in enumerate(arrays["masses"].tolist()):
        found = transport(similarity, u, v, mass=mass)
        np.testing.assert_allclose(found.score, arrays[f"{marginal}.partial"][row], atol=1e-8)
        np.testing.assert_allclose(found.plan.sum((1, 2)), mass, atol=1e-10)
    half = transport(similarity, mass=0.5).plan[int(arrays["half_at"])]
    np.testing.assert_allclose(half, arrays["uniform.plan_half"], atol=1e-9)


@pytest.mark.parametrize("marginal", MARGINALS)
def test_small_epsilon_comes_to_the_exact_optimum(marginal):
    arrays, similarity, u, v = golden(0, marginal)
    found = transport(similarity[:2], u[:2], v[:2], epsilon=2e-4)
    assert found.converged.all()
    np.testing.assert_allclose(1 - found.score, arrays[f"{marginal}.emd_cost"][:2], atol=5e-4)


def test_small_epsilon_agrees_with_linear_programming():
    optimize = pytest.importorskip("scipy.optimize")
    similarity, u, v = torch.rand(5, 7).double(), torch.rand(5).double(), torch.rand(7).double()
    u, v = u / u.sum(), v / v.sum()
    rows = torch.kron(torch.eye(5), torch.ones(1, 7))
    columns = torch.kron(torch.ones(1, 5), torch.eye(7))
    for mass in (1.0, 0.4):
        found = transport(similarity, u, v, epsilon=1e-3, mass=mass)
        best = optimize.linprog(
            -similarity.flatten().numpy(),
            A_ub=torch.cat([rows, columns]).numpy(),
            b_ub=torch.cat([u, v]).numpy(),
            A_eq=np.ones((1, 35)),
            b_eq=[mass],
        )
        assert found.converged
        assert float(found.score) == pytest.approx(-best.fun, abs=5e-3)
        assert float(found.score) <= -best.fun + 1e-9


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    scale=st.sampled_from([1e-6, 1.0, 30.0, 1e3]),
    mass=st.sampled_from([0.1, 0.5, 0.97, 1.0]),
    holes=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_marginals_and_mass_hold_at_any_scale(rows, columns, scale, mass, holes, seed):
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(3, rows, columns, generator=generator) * scale
    u, v = (torch.rand(3, n, generator=generator) + 0.05 for n in (rows, columns))
    if holes:
        u[:, 1::2], v[:, 1::2] = 0, 0
    found = transport(similarity, u, v, mass=mass)
    plan = found.plan.double()
    assert found.converged.all() and (plan >= 0).all()
    assert torch.allclose(plan.sum((1, 2)), torch.full((3,), mass).double(), atol=1e-5)
    for weights, sums in ((u, plan.sum(2)), (v, plan.sum(1))):
        wanted = (weights / weights.sum(1, keepdim=True)).double()
        assert (sums <= wanted + 1e-5).all()
        if mass == 1:
            assert torch.allclose(sums, wanted, atol=1e-5)
    if holes:
        assert (plan[:, 1::2] == 0).all() and (plan[:, :, 1::2] == 0).all()
    expected = (found.plan * similarity).sum((1, 2))
    assert torch.allclose(found.score, expected, atol=1e-6 * scale)


def test_a_plan_does_not_depend_on_the_batch_or_the_order():
    similarity = torch.rand(40, 20, 16) * torch.logspace(-2, 1.5, 40)[:, None, None]
    similarity[3] = torch.nan
    u, v = torch.rand(40, 20), torch.rand(40, 16)
    for mass in (1.0, 0.6, "auto"):
        together = transport(similarity, u, v, mass=mass)
        assert together.converged.sum() == 39 and not together.converged[3]
        for i in (0, 7, 39):
            alone = transport(similarity[i], u[i], v[i], mass=mass)
            assert torch.allclose(alone.plan, together.plan[i], atol=1e-7)
            assert alone.iterations == together.iterations[i]
        rows, columns = torch.randperm(20), torch.randperm(16)
        moved = transport(similarity[7][rows][:, columns], u[7, rows], v[7, columns], mass=mass)
        assert torch.allclose(moved.plan, together.plan[7][rows][:, columns], atol=1e-6)


def test_mirrored_problems_have_mirrored_plans():
    similarity, u, v = torch.rand(6, 9).double(), torch.rand(6), torch.rand(9)
    found = transport(similarity, u, v, mass=0.7)
    mirrored = transport(similarity.T, v, u, mass=0.7)
    assert torch.allclose(found.plan, mirrored.plan.T, atol=1e-9)


def test_similarity_and_epsilon_scale_together_and_an_offset_changes_no_full_plan():
    similarity = torch.rand(4, 6, 9).double()
    plan = transport(similarity).plan
    assert torch.allclose(transport(similarity * 1e4, epsilon=500.0).plan, plan, atol=1e-9)
    assert torch.allclose(transport(similarity - 70).plan, plan, atol=1e-9)
    assert torch.allclose(
        transport(similarity - 70, mass=0.5).plan.sum((1, 2)), torch.tensor(0.5).double()
    )


def test_leading_dimensions_broadcast():
    similarity, u, v = torch.rand(2, 3, 5, 4), torch.rand(5), torch.rand(3, 4)
    found = transport(similarity, u, v)
    assert found.plan.shape == (2, 3, 5, 4) and found.score.shape == (2, 3)
    assert torch.allclose(found.plan[1, 2], transport(similarity[1, 2], u, v[2]).plan, atol=1e-6)
    assert transport(similarity[0, 0]).score.shape == ()
    assert transport(similarity.half()).plan.dtype == torch.float32
    assert transport(similarity[:0]).plan.shape == (0, 3, 5, 4)


@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_gradients_are_those_of_the_optimum(mass):
    similarity = torch.rand(2, 4, 3).double().requires_grad_()
    u, v = (torch.rand(2, n).double().add(0.1).requires_grad_() for n in (4, 3))

    def outcome(similarity, u, v):
        found = transport(similarity, u, v, epsilon=0.2, mass=mass)
        return found.plan, found.score

    assert torch.autograd.gradcheck(outcome, (similarity, u, v), eps=1e-5, atol=1e-6)


def test_gradients_of_a_location_without_mass_are_finite():
    u = torch.tensor([0.0, 1.0, 1.0]).double().requires_grad_()
    similarity = torch.rand(3, 4).double().requires_grad_()
    transport(similarity, u).score.backward()
    more = torch.tensor([1e-5, 1.0, 1.0]).double()
    with torch.no_grad():
        slope = (transport(similarity, more).score - transport(similarity, u).score) / 1e-5
    assert torch.isfinite(similarity.grad).all()
    assert float(u.grad[0]) == pytest.approx(float(slope), abs=1e-3)


def test_zero_constant_and_antipodal_features_give_numbers():
    features = F.normalize(torch.randn(9, 5), dim=-1)
    zero = torch.zeros(9, 9)
    for similarity in (zero, zero + 0.3, features @ -features.T, -torch.ones(9, 9)):
        for mass in (1.0, 0.3, "auto"):
            found = transport(similarity, mass=mass)
            assert found.converged and found.plan.isfinite().all()
            assert not found.degenerate


def test_a_marginal_without_mass_becomes_uniform_and_is_flagged():
    similarity = torch.rand(2, 5, 5)
    u = torch.stack([torch.zeros(5), torch.rand(5)])
    found = transport(similarity, u)
    assert found.degenerate.tolist() == [True, False]
    assert torch.allclose(found.plan[0], transport(similarity[0]).plan, atol=1e-6)


@pytest.mark.parametrize("shared", [0.25, 0.5, 0.75, 1.0])
def test_automatic_mass_finds_the_planted_overlap(shared):
    common = torch.randn(384) * 0.8  # as in real features, everything is somewhat alike
    first = torch.randn(48, 384) + common
    second = torch.randn(48, 384) + common
    count = int(48 * shared)
    second[:count] = first[:count] + 0.4 * torch.randn(count, 384)
    similarity = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    found = transport(similarity[:, torch.randperm(48)], mass="auto")
    assert float(found.mass) == pytest.approx(shared, abs=0.05)
    assert float(found.plan.sum()) == pytest.approx(float(found.mass), abs=1e-5)


def test_automatic_mass_is_everything_where_nothing_stands_out():
    assert (transport(torch.full((3, 9, 9), 0.4), mass="auto").mass == 1).all()


def test_each_pair_can_have_its_own_mass():
    similarity, mass = torch.rand(3, 6, 6), torch.tensor([0.2, 0.9, 1.0])
    found = transport(similarity, mass=mass)
    assert torch.allclose(found.plan.sum((1, 2)), mass, atol=1e-5)
    assert torch.allclose(found.plan[2], transport(similarity[2]).plan, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mass": 0.0}, r"mass must lie in \(0, 1\]; got 0"),
        ({"mass": "atuo"}, "use a number in"),
        ({"epsilon": 0.0}, "use a positive number"),
        ({"u": torch.ones(3)}, "u has 3 weights for 4 locations"),
        ({"v": -torch.ones(5)}, "v has negative weights"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        transport(torch.rand(4, 5), **arguments)


def official_transport(similarity, u, v, mass=1.0):
    """Plans (B, R, Q) as the published codes compute them: DIML (mass 1), vit-reranking (less).

    Their loop stops when a mean over the whole batch changes little, so a score depends on the
    batch, and partial transport moves less mass than asked.
    """
    kernel = ((similarity - 1) / 0.05).exp()
    if mass < 1:
        kernel = F.pad(kernel, (0, 1, 0, 1), value=1 - mass)
        kernel[:, -1, -1] = 0
        u, v = (F.pad(w, (0, 1), value=1 - mass) for w in (u, v))
    rows, columns = torch.ones_like(u), torch.ones_like(v)
    for _ in range(100):
        before = rows
        rows = u / (kernel @ columns[..., None]).squeeze(2)
        columns = v / (rows[:, None] @ kernel).squeeze(1)
        if (rows - before).abs().mean() < 0.1:
            break
    plan = rows[..., None] * kernel * columns[:, None]
    return plan[:, :-1, :-1] if mass < 1 else plan


def test_the_golden_numbers_of_the_published_loop_are_understood():
    arrays = np.load(GOLDEN / "transport_official.npz")
    similarity = torch.from_numpy(arrays["similarity"])  # (candidates, R, Q)

    def score(plan):
        return (plan * similarity[: len(plan)]).sum((1, 2))

    even = torch.ones(20, 49) / 49
    found = score(official_transport(similarity, even, even))
    np.testing.assert_allclose(found, arrays["official_diml_uniform"], atol=1e-5)
    for rule in ("inverse", "minus", "soft"):
        u, v = (
            torch.from_numpy(arrays[f"official_{rule}_{side}"])
            for side in ("u_candidate", "v_query")
        )
        found = score(official_transport(similarity, u, v))
        np.testing.assert_allclose(found, arrays[f"official_{rule}"], atol=1e-5)
    for row, mass in enumerate(arrays["partial_masses"].tolist()):
        plan = official_transport(similarity, even, even, mass)
        np.testing.assert_allclose(score(plan), arrays["official_partial_uniform"][row], atol=1e-5)
        moved = arrays["official_partial_uniform_mass"][row]
        np.testing.assert_allclose(plan.sum((1, 2)), moved, atol=1e-5)
