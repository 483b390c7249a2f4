import numpy as np
import pytest
import torch

from clearvit.errors import ImageError
from clearvit.evaluation.evaluate import evaluate
from clearvit.probes.clustering import kmeans, matched_iou, score_clusters
from clearvit.probes.correspondence import patch_classes, sample_pairs, score_pair
from tests.helpers.made_data import voc_masks


def test_separate_groups_are_found_from_any_start():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 5, generator=generator) * 0.1
    points[20:40] += 3
    points[40:, 0] -= 4
    for seed in range(5):
        clusters = kmeans(points, 3, seed=seed)
        assert [len(set(clusters[i : i + 20].tolist())) for i in (0, 20, 40)] == [1, 1, 1]
        assert len(set(clusters.tolist())) == 3
    assert np.array_equal(kmeans(points, 3, seed=1), kmeans(points, 3, seed=1))


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
    assert score_clusters(torch.randn(4, 3), (2, 2), mask, 0).tolist() == [0, 0]
    mask[:, 4:] = 1
    tokens = torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.1, 1]])
    assert score_clusters(tokens, (2, 2), mask, 0).tolist() == [100, 1]


def test_patches_that_land_in_their_class_are_counted():
    source = torch.eye(4)
    target = torch.eye(4)[[0, 1, 3, 2]]
    kinds, other = np.array([1, 1, 1, 2]), np.array([1, 2, 1, 1])
    found = score_pair(source, kinds, target, other, 1)  # 0 -> 0, 1 -> 1, 2 -> 3
    assert found.tolist() == pytest.approx([200 / 3, 75, 1])


def test_a_patch_needs_more_than_half_of_a_class():
    mask = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, -1, -1], [0, 1, -1, 2]])
    assert patch_classes(mask, (2, 2), 3).tolist() == [0, 1, -1, -1]


def test_pairs_share_a_class_and_differ():
    shown = [{1}, {1, 2}, {2}, {3}, set()]
    for seed in range(20):
        pairs = sample_pairs(shown, seed)
        assert [pair[0] for pair in pairs] == [0, 1, 2]
        assert all(kind in shown[a] & shown[b] and a != b for a, b, kind in pairs)
    assert sample_pairs(shown, 5) == sample_pairs(shown, 5)


def test_both_tasks_on_a_folder(tiny, tmp_path):
    root, cache = voc_masks(tmp_path / "voc"), tmp_path / "cache"
    parts = evaluate(tiny, task="clustering", data=root, seeds=2, cache=cache)
    row = parts.rows[0]
    assert row.num_tested == 4 and row.seeds == 2 and row.num_labelled == 0
    assert row["mIoU"].mean > 60  # red and blue are easily told apart
    pairs = evaluate(tiny, task="semantic-correspondence", data=root, seeds=2, cache=cache)
    assert pairs.rows[0]["same class"].mean > pairs.rows[0]["at random"].mean + 20
    assert len(list(cache.iterdir())) == 1  # one extraction serves both
    with pytest.raises(ImageError, match="show the same class"):
        evaluate(tiny, task="semantic-correspondence", data=root, limit=1)
