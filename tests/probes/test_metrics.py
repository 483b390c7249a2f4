import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.probes.metrics import (
    BOUNDARY,
    confusion_matrix,
    depth_errors,
    depth_metrics,
    pck,
    segmentation_counts,
    segmentation_metrics,
)

metrics = pytest.importorskip("sklearn.metrics")


def test_a_confusion_matrix_counted_by_hand():
    truth = np.array([[0, 0, 1], [1, -1, -1]])
    predicted = np.array([[0, 1, 1], [1, 0, 2]])
    found = confusion_matrix(predicted, truth, 3)
    assert found.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    scores = segmentation_metrics(segmentation_counts(predicted, truth, 3), "abc", subset=(1,))
    assert scores["mIoU"] == pytest.approx((50 + 200 / 3) / 2)  # the third class does not occur
    assert scores["mIoU of 1"] == pytest.approx(200 / 3)
    assert scores["mAcc"] == pytest.approx(75) and scores["pixels"] == pytest.approx(75)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.integers(2, 6))
def test_rows_of_images_sum_to_the_scores_of_scikit_learn(seed, classes):
    rng = np.random.default_rng(seed)
    shape = (5, 3, 4)
    truth, predicted = rng.integers(-1, classes, shape), rng.integers(0, classes, shape)
    pairs = zip(predicted, truth, strict=True)
    rows = np.stack([segmentation_counts(one, mask, classes) for one, mask in pairs])
    found = segmentation_metrics(rows.sum(0), range(classes), subset=(0, 1))
    real, given = truth[truth >= 0], predicted[truth >= 0]
    there = np.union1d(real, given)
    iou = metrics.jaccard_score(real, given, labels=there, average=None, zero_division=0)
    assert found["mIoU"] == pytest.approx(100 * iou.mean())
    few = metrics.jaccard_score(
        real, given, labels=np.intersect1d(there, (0, 1)), average=None, zero_division=0
    )
    assert found["mIoU of 2"] == pytest.approx(100 * few.mean())
    true = np.unique(real)
    recall = metrics.recall_score(real, given, labels=true, average=None, zero_division=0)
    assert found["mAcc"] == pytest.approx(100 * recall.mean())
    assert found["pixels"] == pytest.approx(100 * (real == given).mean())


def test_many_sums_at_once():
    sums = np.random.default_rng(0).integers(1, 9, (7, 2, 3, 2)).astype(float)
    sums[:, :, 1:] += sums[:, :, :1]
    sums = sums.reshape(7, 12)
    together = segmentation_metrics(sums, "ab")
    for i in range(7):
        alone = segmentation_metrics(sums[i], "ab")
        assert all(together[name][i] == pytest.approx(float(alone[name])) for name in alone)


def test_boundary_iou_counts_only_pixels_near_an_edge():
    truth, predicted = np.zeros((2, 100, 100), dtype=np.int64)
    truth[20:80, 20:80] = predicted[20:80, 20:80] = 1
    predicted[45:55, 45:55] = 0  # a hole deep inside: it has edges of its own, the truth has none
    width = round(BOUNDARY * np.hypot(100, 100))
    edges = np.zeros((2, 2, 100, 100), dtype=bool)  # (mask, class), pixel by pixel
    for i, mask in enumerate((truth, predicted)):
        for y, x in np.ndindex(mask.shape):
            window = mask[max(0, y - width) : y + width + 1, max(0, x - width) : x + width + 1]
            inside = width <= y < 100 - width and width <= x < 100 - width
            edges[i, mask[y, x], y, x] = not inside or (window != mask[y, x]).any()
    overlap = (edges[0] & edges[1]).sum((1, 2)) / (edges[0] | edges[1]).sum((1, 2))
    found = segmentation_metrics(segmentation_counts(predicted, truth, 2), "ab", subset=(1,))
    assert found["boundary IoU"] == pytest.approx(100 * overlap.mean())
    assert found["boundary IoU of 1"] == pytest.approx(100 * overlap[1])
    same = segmentation_metrics(segmentation_counts(truth, truth, 2), "ab")
    assert same["boundary IoU"] == pytest.approx(100)


def test_depth_against_plain_numpy():
    chance = np.random.default_rng(0)
    truths, guesses = chance.uniform(1, 5, (2, 3, 6, 7))
    truths[:, 0] = 0
    rows = np.stack([depth_errors(g, t) for g, t in zip(guesses, truths, strict=True)])
    found = depth_metrics(rows.sum(0))
    real, guess = truths[:, 1:].reshape(3, -1), guesses[:, 1:].reshape(3, -1)
    assert found["RMSE"] == pytest.approx(np.sqrt(((real - guess) ** 2).mean(1)).mean())
    assert found["AbsRel"] == pytest.approx((np.abs(real - guess) / real).mean())
    near = np.maximum(real / guess, guess / real)
    for power in (1, 2, 3):
        assert found[f"delta{power}"] == pytest.approx((near < 1.25**power).mean())


def test_a_perfect_depth():
    truth = np.array([[0.0, 2.0], [3.0, 4.0]])
    found = depth_metrics(depth_errors(np.maximum(truth, 1), truth))
    assert [float(value) for value in found.values()] == [0, 0, 1, 1, 1]


def test_pck_counts_points_within_the_threshold():
    truth = np.zeros((4, 2))
    guess = np.array([[0, 0], [3, 4], [0, 5.1], [10, 0]], dtype=float)
    assert pck(guess, truth, 5.0) == 50
    assert pck(guess, truth, 5.2) == 75
