import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import VOID
from clearvit.errors import ImageError
from clearvit.probes.features import extract_features, sample_images, select_evenly
from clearvit.probes.linear import LinearHead, Ridge, fit_logistic, fold_batch_norm
from clearvit.probes.patches import patch_labels, patch_means, resize_nearest
from clearvit.probes.segmentation import (
    SlidingWindows,
    average_windows,
    collect_patches,
    measure_sliding,
    measure_whole,
    sliding_windows,
    upsample_scores,
)
from clearvit.probes.sgd import (
    cell_batches,
    cross_entropy,
    make_head,
    pixel_batches,
    shuffle_batches,
    train_fast_head,
    train_head,
)
from tests.helpers.made_data import voc_masks

RED_BLUE = ("background", "aeroplane")


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    root = voc_masks(tmp_path_factory.mktemp("voc"))
    return read_masks(root, split="train"), read_masks(root, split="val")


@pytest.fixture(scope="module")
def features(tiny, splits):
    with extract_features(tiny, splits[0]) as train, extract_features(tiny, splits[1]) as val:
        yield train, val


def test_patch_labels_by_hand():
    mask = np.array([[0, 0, 1, 1], [0, 1, 1, 1], [-1, -1, 2, 2], [-1, 0, 2, 2]])
    shares, weights = patch_labels(mask, (2, 2), 3)
    assert shares.tolist() == [[0.75, 0.25, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert weights.tolist() == [1, 1, 0.25, 1]


def test_patch_means_and_uneven_patches():
    values = np.arange(15, dtype=float).reshape(3, 5)
    means, weights = patch_means(values, values != 14, (2, 2))
    # Pixels go by their corner: rows 0, 1 | 2 and columns 0, 1, 2 | 3, 4.
    assert means.tolist() == [3.5, 6.0, 11.0, 13.0]
    assert weights.tolist() == [1, 1, 1, 0.5]


def test_resizing_a_mask_mixes_nothing():
    mask = np.array([[0, 5], [9, -1]])
    assert resize_nearest(mask, (4, 2)).tolist() == [[0, 5], [0, 5], [9, -1], [9, -1]]
    assert resize_nearest(resize_nearest(mask, (6, 6)), (2, 2)).tolist() == mask.tolist()


def test_windows_cover_and_the_last_is_clamped():
    assert sliding_windows((5, 10), (4, 4), 3) == [
        (top, left, top + 4, left + 4) for top in (0, 1) for left in (0, 3, 6)
    ]
    assert sliding_windows((4, 4), (8, 8), 3) == [(0, 0, 4, 4)]
    places = sliding_windows((1, 5), (1, 3), 2)
    parts = [(place, torch.full((1, 1, 3), float(i))) for i, place in enumerate(places)]
    assert average_windows(parts, (1, 5)).flatten().tolist() == [0, 0, 0.5, 1, 1]
    with pytest.raises(ValueError, match="do not cover"):
        average_windows(parts[:1], (1, 5))


def test_draws_are_nested_and_seeded():
    few, more = sample_images(30, 5, 3), sample_images(30, 20, 3)
    assert len(few) == 5 and set(few) <= set(more) and few == sample_images(30, 5, 3)
    assert few != sample_images(30, 5, 4) and sample_images(4, 9, 0) == sample_images(
        4, None, 0
    ) == [0, 1, 2, 3]
    assert select_evenly(10, 3) == [0, 4, 9] and select_evenly(3, None) == [0, 1, 2]


def test_logistic_regression_agrees_with_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = torch.randn(80, 4) * torch.tensor([1.0, 5.0, 0.1, 1.0]) + 2
    labels = (x[:, 0] + x[:, 1] / 5 + torch.randn(80)).gt(2.4).long() + (x[:, 3] > 3).long()
    head = fit_logistic(x, labels, 3, penalty=0.05, steps=300)
    standard = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    peer = linear_model.LogisticRegression(C=1 / (0.05 * 80), tol=1e-8, max_iter=1000)
    expected = peer.fit(standard, labels).predict_proba(standard)
    assert np.allclose(head(x).softmax(1).numpy(), expected, atol=2e-3)


def test_ridge_from_sums_is_the_plain_solution():
    x, y, weights = torch.randn(50, 4) + 1, torch.randn(50, 2), torch.rand(50)
    ridge = Ridge(4, 2)
    for rows in torch.arange(50).split(13):
        ridge.add(x[rows], y[rows], weights[rows])
    head = ridge.solve(penalty=0.1)
    w = (weights / weights.sum()).double()
    mean, middle = w @ x.double(), w @ y.double()
    deviation = (w @ (x - mean).square()).sqrt()
    z = (x - mean) / deviation
    left = z.T @ (w[:, None] * z) + 0.1 * torch.eye(4)
    beta = torch.linalg.solve(left, z.T @ (w[:, None] * (y - middle)))
    assert torch.allclose(head(x).double(), z @ beta + middle, atol=1e-5)


def test_a_batch_norm_folds_into_the_head():
    norm, conv = make_head(5, 3, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, conv.bias, norm.running_mean):
            tensor.copy_(torch.randn_like(tensor))
        norm.running_var.copy_(torch.rand(5) + 0.5)
        norm.eval()
        x = torch.randn(2, 5, 4, 4)
        assert torch.allclose(fold_batch_norm(norm, conv).on_map(x), conv(norm(x)), atol=1e-5)


def test_void_patches_are_left_out_and_images_give_equal_numbers(features, splits):
    tokens, labels = collect_patches(features[0], splits[0], [0, 1], limit=1000)
    assert len(tokens) == len(labels) == 32 and labels.shape[1] == 21
    assert len(collect_patches(features[0], splits[0], [0, 1], limit=10)[0]) == 10


def mean_iou(rows):
    hits, true, guess = rows.sum(0).reshape(6, 21)[:3, :2]
    return 100 * np.mean(hits / (true + guess - hits))


def test_the_fast_probe_learns_the_colour(features, splits):
    head = train_fast_head(features[0], splits[0], range(6), steps=150)
    again = train_fast_head(features[0], splits[0], range(6), steps=150)
    assert torch.equal(head.weight, again.weight)
    constant = LinearHead(torch.zeros(21, 24), torch.eye(21)[1])
    rows = measure_whole([head, constant], features[1], splits[1])
    assert rows[0].shape == (4, 126)
    assert mean_iou(rows[0]) > 60 > 40 > mean_iou(rows[1])


@given(st.integers(0, 99))
def test_a_cell_is_the_sum_of_its_pixels(seed):
    chance = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 4, 5, generator=chance)
    pixels = torch.randint(-1, 3, (2, 12, 10), generator=chance)
    finer = scores.repeat_interleave(3, dim=2).repeat_interleave(2, dim=3)
    known = F.one_hot(pixels.clamp(min=0), 3) * (pixels >= 0)[..., None]
    cells = F.avg_pool2d(known.movedim(-1, 1).float(), (3, 2))
    total, count = cross_entropy(scores, cells)
    expected, valid = cross_entropy(finer, pixels)
    assert count.item() * 6 == pytest.approx(valid.item())
    assert total.item() * 6 == pytest.approx(expected.item(), rel=1e-5)


def test_cells_tell_what_is_in_a_quarter_of_a_patch(features, splits):
    tokens, cells = next(
        cell_batches(features[0], splits[0], [3], seed=0, device=torch.device("cpu"))
    )
    (height, width), mask = features[0].grid, splits[0].read(3)
    assert tokens.shape[-2:] == (height, width) and cells.shape == (8, 21, 2 * height, 2 * width)
    side = mask.shape[0] // (2 * height)
    quarter = mask[:side, :side]
    assert cells[0, :2, 0, 0].tolist() == pytest.approx(
        [(quarter == kind).mean() for kind in (0, 1)], abs=1e-3
    )
    assert (quarter == VOID).any() and cells[0, :, 0, 0].sum() < 1


def test_nothing_but_void_is_an_error():
    batches = itertools.repeat((torch.randn(1, 4, 2, 2), torch.full((1, 4, 4), VOID)))
    with pytest.raises(ImageError, match="nothing to learn from"):
        train_head(batches, classes=3, steps=2)


def test_the_stepwise_probe_learns_the_colour(features, splits):
    batches = pixel_batches(features[0], splits[0], range(6), seed=0, device=torch.device("cpu"))
    head = train_head(batches, classes=21, steps=150)
    assert mean_iou(measure_whole([head], features[1], splits[1])[0]) > 55


def test_batches_go_through_all_images_before_any_comes_twice():
    some = list(itertools.islice(shuffle_batches([3, 4, 5], 2, np.random.default_rng(0)), 3))
    flat = [i for part in some for i in part]
    assert sorted(flat[:3]) == sorted(flat[3:]) == [3, 4, 5]


def test_one_window_as_large_as_the_image_is_the_whole_image(tiny, features, splits):
    head = LinearHead(torch.randn(21, 24), torch.zeros(21))
    whole = measure_whole([head], features[1], splits[1])[0]
    slid = measure_sliding([head], tiny, splits[1], SlidingWindows())[0]
    # Half precision on disk may move single pixels.
    assert np.abs(whole - slid).max() <= 16 and (whole[:, 21:42] == slid[:, 21:42]).all()


def test_sliding_windows_answer_for_every_valid_pixel(tiny, splits):
    heads = [LinearHead(torch.randn(21, 24), torch.zeros(21)) for _ in range(2)]
    sliding = SlidingWindows(size=64, crop=32, stride=20)
    rows = measure_sliding(heads, tiny, splits[1], sliding)
    assert len(rows) == 2 and (rows[0][:, 42:63].sum(1) == 32 * 31).all()


def test_upsampling_is_bilinear():
    found = upsample_scores(torch.tensor([[0.0], [1.0]]), (1, 2), (1, 4))
    assert found.flatten().tolist() == [0, 0.25, 0.75, 1]
