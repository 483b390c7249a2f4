"""The detector finds what is planted and says no where nothing is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.artifacts.outliers import (
    MAX_FRACTION,
    Outliers,
    find_outliers,
    log_histogram,
    longest_run,
    outlier_mask,
)

SIDES = ("high", "low")


def hump(kind, images=16, tokens=600, seed=0):
    """Norms with one mode, of several shapes."""
    random = np.random.default_rng(seed)
    shape = (images, tokens)
    logs = {
        "log-normal": lambda: random.normal(0, 0.2, shape),
        "exponential tail": lambda: random.exponential(0.2, shape),
        "mirrored exponential": lambda: -random.exponential(0.2, shape),
        "laplace": lambda: random.laplace(0, 0.1, shape),
        "gamma": lambda: np.log(random.gamma(3, 1, shape)),
        "skewed": lambda: random.gumbel(0, 0.15, shape),
        "uniform": lambda: random.uniform(-1, 1, shape),
    }[kind]()
    return torch.from_numpy(50 * np.exp(logs)).float()


SHAPES = [
    "log-normal",
    "exponential tail",
    "mirrored exponential",
    "laplace",
    "gamma",
    "skewed",
    "uniform",
]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("images", [1, 4, 32])
@pytest.mark.parametrize("seed", range(3))
def test_one_mode_has_no_outliers_whatever_its_shape(kind, images, seed):
    norms = hump(kind, images, seed=seed)
    assert find_outliers(norms, "high") is None
    assert find_outliers(norms, "low") is None


def test_the_mixture_of_the_paper():
    random = np.random.default_rng(0)
    norms = 50 * np.exp(random.normal(0, 0.2, (32, 1369)))
    outlier = random.random(norms.shape) < 0.024
    norms[outlier] = 400 * np.exp(random.normal(0, 0.1, outlier.sum()))
    norms = torch.from_numpy(norms)
    found = find_outliers(norms, "high")
    assert found is not None and find_outliers(norms, "low") is None
    assert abs(found.fraction - 0.024) < 0.003
    assert found.interval[0] <= found.fraction <= found.interval[1]
    assert 1 < found.cutoff < 8
    assert found.confidence == 1
    flags, rule = found.mask(norms), norms > 150
    assert (flags & rule).sum() / (flags | rule).sum() >= 0.95


def test_the_mirror_case_is_low():
    norms = hump("log-normal", tokens=1000)
    norms[:, :20] *= 0.1
    found = find_outliers(norms, "low")
    assert found is not None and find_outliers(norms, "high") is None
    assert found.mask(norms)[:, :20].all() and not found.mask(norms)[:, 20:].any()


@pytest.mark.parametrize("share", [0.5, 0.3, 0.15])
def test_two_populations_are_no_artifact(share):
    norms = hump("log-normal", tokens=1000)
    norms[:, : int(share * 1000)] *= 4
    assert find_outliers(norms, "high") is None
    assert find_outliers(norms, "low") is None


@pytest.mark.parametrize("fraction", [0.005, 0.02, 0.05, 0.08])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["log-normal", "exponential tail", "skewed"])
def test_planted_tokens_are_flagged_exactly(fraction, side, kind):
    norms = hump(kind, tokens=1000)
    count = int(fraction * 1000)
    norms[:, :count] = norms.median() * (30 if side == "high" else 1 / 30)
    found = find_outliers(norms, side)
    assert found is not None
    flags = found.mask(norms)
    assert flags[:, :count].all() and not flags[:, count:].any()
    assert found.count == count * 16


def test_a_few_tokens_of_one_image_suffice_if_they_lie_far_out():
    norms = hump("log-normal", images=1, tokens=1369)
    norms[0, :4] = 500
    found = find_outliers(norms, "high")
    assert found is not None and found.count == 4
    assert found.confidence < 1  # four tokens might have been none


def test_too_near_is_no_artifact():
    norms = hump("log-normal") ** 0.02  # spread of 0.4 %
    norms[:, :10] = norms.median() * 1.2
    assert find_outliers(norms, "high") is None


@settings(max_examples=25, deadline=None)
@given(
    scale=st.floats(1e-3, 1e3),
    order=st.permutations(range(8)),
    planted=st.integers(0, 20),
)
def test_scale_and_order_change_nothing(scale, order, planted):
    norms = hump("log-normal", images=8, tokens=400)
    norms[:, :planted] *= 20
    first, second = find_outliers(norms, "high"), find_outliers(norms[list(order)] * scale, "high")
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.cutoff == pytest.approx(second.cutoff, rel=0.011)  # one bin
        assert torch.equal(first.mask(norms)[list(order)], second.mask(norms[list(order)] * scale))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), images=st.integers(1, 6), tokens=st.integers(1, 50))
def test_any_input_is_survived_and_outliers_are_rare(seed, images, tokens):
    random = np.random.default_rng(seed)
    norms = torch.from_numpy(random.exponential(1, (images, tokens)) ** random.integers(0, 9))
    for side in SIDES:
        found = find_outliers(norms, side)
        assert found is None or found.fraction <= MAX_FRACTION


@pytest.mark.parametrize("norms", [torch.zeros(3, 50), torch.ones(3, 50), torch.ones(1, 1)])
def test_degenerate_norms_have_no_outliers(norms):
    assert find_outliers(norms, "high") is None and find_outliers(norms, "low") is None


def test_the_histogram_counts_every_token_once():
    norms = hump("gamma")
    assert torch.equal(log_histogram(norms).sum(1), torch.full((16,), 600.0))
    mirrored = log_histogram(norms, "low")
    assert torch.equal(mirrored.sum(1), torch.full((16,), 600.0))


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ("......", []),
        ("#.....", []),  # contrast of the picture, not carried on
        (".....#", [5]),  # nothing follows that could carry it on
        ("##.###", [3, 4, 5]),
        ("##..##", [0, 1]),
    ],
)
def test_only_outliers_that_are_carried_on_make_a_run(blocks, expected):
    found = Outliers("high", 2.0, 0.01, (0.0, 0.02), 5, 0.1, 1.0)
    assert longest_run([found if block == "#" else None for block in blocks]) == expected


def test_each_image_is_judged_by_its_own_norms_on_both_sides():
    norms = torch.exp(0.15 * torch.randn(3, 400, generator=torch.Generator().manual_seed(0)))
    norms = norms * torch.tensor([[10.0], [20.0], [40.0]])
    assert not outlier_mask(norms).any()
    norms[1, :6] *= 8
    norms[2, 390:] *= 0.1
    mask = outlier_mask(norms)
    assert not mask[0].any() and mask[1, :6].all() and mask[2, 390:].all()
    assert mask.sum() <= 20
    for row, side in ((1, "high"), (2, "low")):
        found = find_outliers(norms[row : row + 1], side)
        assert found is not None and torch.equal(found.mask(norms[row : row + 1])[0], mask[row])
