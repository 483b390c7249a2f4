import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.dense.metrics import (
    confusion_matrix,
    depth_metrics,
    depth_row,
    pck,
    segmentation_metrics,
    segmentation_row,
    segmentation_scores,
)

metrics = pytest.importorskip("sklearn.metrics")


def test_a_confusion_matrix_counted_by_hand():
    truth = np.array([[0, 0, 1], [1, -1, -1]])
    guess = np.array([[0, 1, 1], [1, 0, 2]])
    found = confusion_matrix(guess, truth, 3)
    assert found.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    scores = segmentation_scores(found)
    assert scores.iou[:2] == pytest.approx([50, 200 / 3]) and np.isnan(scores.iou[2])
    assert scores.miou == pytest.approx((50 + 200 / 3) / 2)
    assert scores.macc == pytest.approx(75) and scores.accuracy == pytest.approx(75)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.integers(2, 6))
def test_scores_agree_with_scikit_learn(seed, classes):
    chance = np.random.default_rng(seed)
    truth, guess = chance.integers(0, classes, (2, 60))
    there = np.union1d(truth, guess)
    scores = segmentation_scores(confusion_matrix(guess, truth, classes))
    iou = metrics.jaccard_score(truth, guess, labels=there, average=None, zero_division=0)
    assert scores.iou[there] == pytest.approx(100 * iou)
    assert scores.miou == pytest.approx(100 * iou.mean())
    true = np.unique(truth)
    recall = metrics.recall_score(truth, guess, labels=true, average=None, zero_division=0)
    assert scores.macc == pytest.approx(100 * recall.mean())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_rows_of_images_sum_to_the_scores_of_all_pixels(seed):
    chance = np.random.default_rng(seed)
    truth = chance.integers(-1, 4, (5, 3, 4))
    guess = chance.integers(0, 4, (5, 3, 4))
    rows = np.stack([segmentation_row(g, t, 4) for g, t in zip(guess, truth, strict=True)])
    found = segmentation_metrics(rows.sum(0), "abcd", subset=(1, 3))
    scores = segmentation_scores(confusion_matrix(guess, truth, 4))
    assert float(found["mIoU"]) == pytest.approx(scores.miou, nan_ok=True)
    assert float(found["mAcc"]) == pytest.approx(scores.macc, nan_ok=True)
    assert float(found["pixels"]) == pytest.approx(scores.accuracy)
    wanted = scores.iou[[1, 3]]
    assert float(found["mIoU of 2"]) == pytest.approx(np.nanmean(wanted))


def test_many_sums_at_once():
    sums = np.random.default_rng(0).integers(1, 9, (7, 3, 2)).astype(float)
    sums[:, 1:] += sums[:, :1]
    sums = sums.reshape(7, 6)
    together = segmentation_metrics(sums, "ab")
    for i in range(7):
        alone = segmentation_metrics(sums[i], "ab")
        assert all(together[name][i] == pytest.approx(float(alone[name])) for name in alone)


def test_depth_against_plain_numpy():
    chance = np.random.default_rng(0)
    truths, guesses = chance.uniform(1, 5, (2, 3, 6, 7))
    truths[:, 0] = 0
    rows = np.stack([depth_row(g, t) for g, t in zip(guesses, truths, strict=True)])
    found = depth_metrics(rows.sum(0))
    real, guess = truths[:, 1:].reshape(3, -1), guesses[:, 1:].reshape(3, -1)
    assert found["RMSE"] == pytest.approx(np.sqrt(((real - guess) ** 2).mean(1)).mean())
    assert found["AbsRel"] == pytest.approx((np.abs(real - guess) / real).mean())
    near = np.maximum(real / guess, guess / real)
    for power in (1, 2, 3):
        assert found[f"delta{power}"] == pytest.approx((near < 1.25**power).mean())


def test_a_perfect_depth():
    truth = np.array([[0.0, 2.0], [3.0, 4.0]])
    found = depth_metrics(depth_row(np.maximum(truth, 1), truth))
    assert [float(value) for value in found.values()] == [0, 0, 1, 1, 1]


def test_pck_counts_points_within_the_threshold():
    truth = np.zeros((4, 2))
    guess = np.array([[0, 0], [3, 4], [0, 5.1], [10, 0]], dtype=float)
    assert pck(guess, truth, 5.0) == 50
    assert pck(guess, truth, 5.2) == 75
