import numpy as np
import pytest
import torch

from clearvit.datasets.folders import read_depths
from clearvit.errors import ImageError
from clearvit.probes.depth import (
    Bins,
    _lr_factor,
    depth_batches,
    expected_depth,
    fit_bins,
    fit_log_depth,
    gradient_loss,
    measure_depth,
    scale_loss,
)
from clearvit.probes.features import extract_features
from clearvit.probes.linear import LinearHead
from clearvit.probes.metrics import depth_metrics
from clearvit.probes.patches import resize_nearest
from tests.helpers.made_data import depth_folder


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    root = depth_folder(tmp_path_factory.mktemp("depth"))
    return read_depths(root, split="train"), read_depths(root, split="test")


@pytest.fixture(scope="module")
def features(tiny, splits):
    with extract_features(tiny, splits[0]) as train, extract_features(tiny, splits[1]) as test:
        yield train, test


def test_bins_are_a_mean_under_linear_shares():
    scores = torch.zeros(1, 3, 2, 2)
    assert torch.allclose(expected_depth(scores, 1.0, 5.0), torch.full((1, 8, 8), 3.0))
    scores[:, 2], scores[:, 0] = 0.8, -7.0  # below zero is zero
    expected = (0.1 * 1 + 0.1 * 3 + 0.9 * 5) / 1.1
    assert torch.allclose(expected_depth(scores, 1.0, 5.0), torch.tensor(expected))


def test_the_scale_loss_by_hand():
    truth = torch.tensor([0.0, 1.0, 2.0, 4.0])
    guess = torch.tensor([9.0, 2.0, 2.0, 2.0])
    gap = np.log([2.0, 1.0, 0.5])
    expected = np.sqrt(gap.var(ddof=1) + 0.15 * gap.mean() ** 2)
    assert float(scale_loss(guess, truth)) == pytest.approx(expected, abs=1e-5)
    doubled = scale_loss(2 * truth, truth)
    assert float(doubled) == pytest.approx(np.sqrt(0.15) * np.log(2), abs=1e-5)
    assert float(scale_loss(guess, truth, mean_only=True)) == pytest.approx(0, abs=1e-5)


def test_the_gradient_loss_sees_slopes_and_nothing_else():
    truth = torch.rand(2, 16, 16) + 1
    truth[:, 3] = 0
    assert float(gradient_loss(3 * truth.clamp(min=1e-3), truth)) == pytest.approx(0, abs=1e-4)
    flat = torch.ones(1, 1, 4)
    ramp = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    # Two pixels apart: log 4 twice, over four pixels.
    found = float(gradient_loss(ramp, flat, strides=(1,)))
    assert found == pytest.approx(2 * np.log(4) / 4, abs=1e-5)


def test_the_lr_factor_rises_and_falls():
    rates = [_lr_factor(i, 300) for i in range(300)]
    assert max(rates) == 1 and 120 <= rates.index(max(rates)) <= 130
    assert rates[-1] < 0.01 and rates[0] < 0.02


def test_a_ridge_learns_the_depth_of_colours(features, splits):
    found = fit_log_depth(features[0], splits[0], range(6), 1e-3)
    rows = measure_depth(found, features[1], splits[1], cls=False, eigen_crop=False)
    constant = Bins(LinearHead(torch.zeros(3, 24), torch.zeros(3)), 2.0, 4.0)
    trivial = measure_depth(constant, features[1], splits[1], cls=False, eigen_crop=False)
    ours, theirs = (depth_metrics(part.sum(0)) for part in (rows, trivial))
    assert ours["RMSE"] < 0.8 * theirs["RMSE"] and theirs["RMSE"] == pytest.approx(1)


def test_bins_learn_from_batches(features, splits):
    device = torch.device("cpu")
    batches = depth_batches(features[0], splits[0], range(6), seed=0, device=device)
    tokens, depths = next(batches)
    assert tokens.shape == (16, 48, 4, 4) and depths.shape == (16, 32, 32)
    found = fit_bins(batches, (1e-3, 10.0), steps=60)
    rows = measure_depth(found, features[1], splits[1], cls=True, eigen_crop=False)
    untrained = Bins(LinearHead(torch.zeros(256, 48), torch.zeros(256)), 1e-3, 10.0)
    before = measure_depth(untrained, features[1], splits[1], cls=True, eigen_crop=False)
    assert rows[:, 0].mean() < 0.8 * before[:, 0].mean()
    guess = found(features[1].map([0], cls=True))[0].numpy()
    truth = resize_nearest(splits[1].read(0), guess.shape)
    assert guess[truth == 2].mean() < guess[truth == 4].mean()


def test_the_eigen_crop_wants_photos_of_its_size(features, splits):
    found = fit_log_depth(features[0], splits[0], [0], 1e-3)
    with pytest.raises(ImageError, match=r"0000\.png' has 32 x 32 pixels"):
        measure_depth(found, features[1], splits[1], cls=False, eigen_crop=True)
