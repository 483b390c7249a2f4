"""The bootstrap against plain numpy."""

import numpy as np
import pytest
import torch

from clearvit import stats
from clearvit.stats import bootstrap, quantile_interval, resample


def plain_bootstrap(values, weights, groups, resamples, seed):
    """Means over whole groups that are drawn with replacement, one resample at a time."""
    rng = np.random.default_rng(seed)
    names = np.unique(groups)
    means = []
    for counts in rng.multinomial(len(names), np.full(len(names), 1 / len(names)), resamples):
        chosen = np.repeat(names, counts)
        rows = np.concatenate([np.flatnonzero(groups == name) for name in chosen])
        means.append(np.average(values[rows], weights=weights[rows]))
    return np.quantile(means, (0.025, 0.975))


@pytest.mark.parametrize("grouped", [False, True])
def test_bootstrap_is_the_plain_resampling_of_items_or_groups(grouped):
    rng = np.random.default_rng(7)
    values, weights = rng.normal(size=40), rng.uniform(0.5, 2, size=40)
    groups = np.arange(40) // 5 if grouped else np.arange(40)
    found = bootstrap(
        values, weights=weights, groups=groups if grouped else None, resamples=300, seed=3
    )
    low, high = plain_bootstrap(values, weights, groups, 300, 3)
    assert found.mean == pytest.approx(np.average(values, weights=weights))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_items_that_come_in_groups_widen_the_interval():
    values = np.repeat(np.random.default_rng(0).normal(size=10), 20)
    alone, together = bootstrap(values), bootstrap(values, groups=np.repeat(np.arange(10), 20))
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_missing_values_and_weights_of_zero_are_left_out():
    values = torch.tensor([1.0, float("nan"), 3.0, 9.0])
    found = bootstrap(values, weights=[1, 1, 1, 0])
    assert found == bootstrap([1.0, 3.0])
    assert np.isnan(bootstrap([]).mean)


def test_the_same_seed_pairs_two_resamplings_also_in_chunks(monkeypatch):
    whole = np.concatenate(list(resample(5, 40, 1)))
    assert whole.shape == (40, 5) and (whole.sum(1) == 5).all()
    monkeypatch.setattr(stats, "AT_ONCE", 15)
    assert np.array_equal(np.concatenate(list(resample(5, 40, 1))), whole)


def test_quantile_interval_ignores_what_is_not_finite():
    assert quantile_interval([*range(101), np.inf, np.nan], 0.9) == pytest.approx((5, 95))
    assert np.isnan(quantile_interval([np.nan])).all()
