"""The detector finds what is planted and says no where nothing is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.tails import COMMONEST, Tail, find_tail, lasting, log_histogram

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
def test_one_mode_has_no_tail_whatever_its_shape(kind, images, seed):
    norms = hump(kind, images, seed=seed)
    assert find_tail(norms, "high") is None
    assert find_tail(norms, "low") is None


def test_the_mixture_of_the_paper():
    random = np.random.default_rng(0)
    norms = 50 * np.exp(random.normal(0, 0.2, (32, 1369)))
    outlier = random.random(norms.shape) < 0.024
    norms[outlier] = 400 * np.exp(random.normal(0, 0.1, outlier.sum()))
    norms = torch.from_numpy(norms)
    tail = find_tail(norms, "high")
    assert tail is not None and find_tail(norms, "low") is None
    assert abs(tail.fraction - 0.024) < 0.003
    assert tail.interval[0] <= tail.fraction <= tail.interval[1]
    assert 1 < tail.cutoff < 8
    assert tail.confidence == 1
    flags, rule = tail.flags(norms), norms > 150
    assert (flags & rule).sum() / (flags | rule).sum() >= 0.95


def test_the_mirror_case_is_low():
    norms = hump("log-normal", tokens=1000)
    norms[:, :20] *= 0.1
    tail = find_tail(norms, "low")
    assert tail is not None and find_tail(norms, "high") is None
    assert tail.flags(norms)[:, :20].all() and not tail.flags(norms)[:, 20:].any()


@pytest.mark.parametrize("share", [0.5, 0.3, 0.15])
def test_two_populations_are_no_artifact(share):
    norms = hump("log-normal", tokens=1000)
    norms[:, : int(share * 1000)] *= 4
    assert find_tail(norms, "high") is None
    assert find_tail(norms, "low") is None


@pytest.mark.parametrize("fraction", [0.005, 0.02, 0.05, 0.08])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["log-normal", "exponential tail", "skewed"])
def test_planted_tokens_are_flagged_exactly(fraction, side, kind):
    norms = hump(kind, tokens=1000)
    count = int(fraction * 1000)
    norms[:, :count] = norms.median() * (30 if side == "high" else 1 / 30)
    tail = find_tail(norms, side)
    assert tail is not None
    flags = tail.flags(norms)
    assert flags[:, :count].all() and not flags[:, count:].any()
    assert tail.count == count * 16


def test_a_few_tokens_of_one_image_suffice_if_they_lie_far_out():
    norms = hump("log-normal", images=1, tokens=1369)
    norms[0, :4] = 500
    tail = find_tail(norms, "high")
    assert tail is not None and tail.count == 4
    assert tail.confidence < 1  # four tokens might have been none


def test_too_near_is_no_artifact():
    norms = hump("log-normal") ** 0.02  # spread of 0.4 %
    norms[:, :10] = norms.median() * 1.2
    assert find_tail(norms, "high") is None


@settings(max_examples=25, deadline=None)
@given(
    scale=st.floats(1e-3, 1e3),
    order=st.permutations(range(8)),
    planted=st.integers(0, 20),
)
def test_scale_and_order_change_nothing(scale, order, planted):
    norms = hump("log-normal", images=8, tokens=400)
    norms[:, :planted] *= 20
    first, second = find_tail(norms, "high"), find_tail(norms[list(order)] * scale, "high")
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.cutoff == pytest.approx(second.cutoff, rel=0.011)  # one bin
        assert torch.equal(
            first.flags(norms)[list(order)], second.flags(norms[list(order)] * scale)
        )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), images=st.integers(1, 6), tokens=st.integers(1, 50))
def test_any_input_is_survived_and_no_tail_is_common(seed, images, tokens):
    random = np.random.default_rng(seed)
    norms = torch.from_numpy(random.exponential(1, (images, tokens)) ** random.integers(0, 9))
    for side in SIDES:
        tail = find_tail(norms, side)
        assert tail is None or tail.fraction <= COMMONEST


@pytest.mark.parametrize("norms", [torch.zeros(3, 50), torch.ones(3, 50), torch.ones(1, 1)])
def test_degenerate_norms_have_no_tail(norms):
    assert find_tail(norms, "high") is None and find_tail(norms, "low") is None


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
def test_only_a_tail_that_is_carried_on_lasts(blocks, expected):
    tail = Tail("high", 2.0, 0.01, (0.0, 0.02), 5, 0.1, 1.0)
    assert lasting([tail if block == "#" else None for block in blocks]) == expected
