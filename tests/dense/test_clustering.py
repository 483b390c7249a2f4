import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.dense.class_matches import drawn_pairs, matched_share, patch_classes
from clearvit.dense.clustering import assigned, clustered_row, kmeans, matched_iou
from clearvit.errors import ImageError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.evaluate import evaluate
from tests.dense.made_data import voc_masks


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_the_matching_is_scipys(seed, size):
    optimize = pytest.importorskip("scipy.optimize")
    chance = np.random.default_rng(seed)
    gains = chance.random((size, size)).round(int(chance.integers(1, 9)))  # with ties too
    rows, columns = optimize.linear_sum_assignment(gains, maximize=True)
    ours = assigned(gains)
    assert sorted(ours) == list(range(size))
    assert gains[np.arange(size), ours].sum() == pytest.approx(gains[rows, columns].sum())


def test_separate_groups_are_found_from_any_start():
    chance = torch.Generator().manual_seed(0)
    points = torch.randn(60, 5, generator=chance) * 0.1
    points[20:40] += 3
    points[40:, 0] -= 4
    for seed in range(5):
        owner = kmeans(points, 3, seed=seed)
        assert [len(set(owner[i : i + 20].tolist())) for i in (0, 20, 40)] == [1, 1, 1]
        assert len(set(owner.tolist())) == 3
    assert torch.equal(kmeans(points, 3, seed=1), kmeans(points, 3, seed=1))


def test_the_spread_within_clusters_is_no_larger_than_scikit_learns():
    cluster = pytest.importorskip("sklearn.cluster")
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(3))

    def spread(owner):
        parts = [points[owner == kind] for kind in range(3)]
        return sum(float((part - part.mean(0)).square().sum()) for part in parts)

    theirs = cluster.KMeans(3, n_init=20, random_state=0).fit(points.numpy()).inertia_
    assert spread(kmeans(points, 3, restarts=20)) <= 1.005 * theirs


def test_equal_points_and_more_clusters_than_points():
    assert kmeans(torch.ones(5, 3), 3).shape == (5,)
    assert len(set(kmeans(torch.eye(2), 4).tolist())) == 2


def test_iou_does_not_depend_on_the_names_of_clusters():
    mask = np.array([[0, 0, 5, 5], [0, 0, 5, -1]])
    clusters = np.array([[7, 7, 2, 2], [7, 2, 2, 7]])
    expected = 100 * (3 / 4 + 3 / 4) / 2
    assert matched_iou(clusters, mask) == pytest.approx(expected)
    assert matched_iou(9 - clusters, mask) == pytest.approx(expected)
    assert matched_iou(np.zeros((2, 4), dtype=np.int64), mask) == pytest.approx(100 * 4 / 7 / 2)


def test_an_image_of_one_class_takes_no_part():
    mask = np.zeros((8, 8), dtype=np.int64)
    assert clustered_row(torch.randn(4, 3), (2, 2), mask, 0).tolist() == [0, 0]
    mask[:, 4:] = 1
    tokens = torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.1, 1]])
    assert clustered_row(tokens, (2, 2), mask, 0).tolist() == [100, 1]


def test_patches_that_land_in_their_class_are_counted():
    source = torch.eye(4)
    target = torch.eye(4)[[0, 1, 3, 2]]
    kinds, other = np.array([1, 1, 1, 2]), np.array([1, 2, 1, 1])
    found = matched_share(source, kinds, target, other, 1)  # 0 -> 0, 1 -> 1, 2 -> 3
    assert found.tolist() == pytest.approx([200 / 3, 75, 1])


def test_a_patch_needs_more_than_half_of_a_class():
    mask = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, -1, -1], [0, 1, -1, 2]])
    assert patch_classes(mask, (2, 2), 3).tolist() == [0, 1, -1, -1]


def test_pairs_share_a_class_and_differ():
    shown = [{1}, {1, 2}, {2}, {3}, set()]
    for seed in range(20):
        pairs = drawn_pairs(shown, seed)
        assert [pair[0] for pair in pairs] == [0, 1, 2]
        assert all(kind in shown[a] & shown[b] and a != b for a, b, kind in pairs)
    assert drawn_pairs(shown, 5) == drawn_pairs(shown, 5)


def test_both_tasks_on_a_folder(tiny, tmp_path):
    root = voc_masks(tmp_path / "voc")
    config = EvaluateConfig(resamples=20, draws=2, cache=tmp_path / "cache")
    parts = evaluate(tiny, task="clustering", data=root, config=config)
    assert parts.rows[0].tested == 4 and parts.rows[0].draws == 2 and parts.rows[0].labelled == 0
    assert parts.rows[0]["mIoU"].mean > 60  # red and blue are easily told apart
    pairs = evaluate(tiny, task="class-correspondence", data=root, config=config)
    assert pairs.rows[0]["same class"].mean > pairs.rows[0]["by chance"].mean + 20
    assert len(list((tmp_path / "cache").iterdir())) == 1  # one extraction serves both
    alone = dataclasses.replace(config, limit=1, cache=None)
    with pytest.raises(ImageError, match="show the same class"):
        evaluate(tiny, task="class-correspondence", data=root, config=alone)
