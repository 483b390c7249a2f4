import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import label

from clearvit.discovery import corloc, to_pixels
from clearvit.discovery.boxes import best_iou, connected_component, correct_localizations
from clearvit.errors import ModelError


def test_a_component_does_not_leak_over_edges_or_corners():
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 0, 0]]).bool()
    assert connected_component(mask, 2).tolist() == [[0, 0, 1], [0, 1, 1], [0, 0, 0]]
    assert connected_component(mask, 0).sum() == 1
    assert connected_component(mask, 1).nonzero().tolist() == [[0, 1]]  # outside the mask: itself


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99), st.floats(0.2, 0.9))
@settings(max_examples=60, deadline=None)
def test_a_component_is_that_of_scipy(rows, columns, number, density):
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(number)) < density
    seed = number % mask.numel()
    parts, _ = label(mask.numpy())
    expected = (parts == parts.flat[seed]) & mask.numpy()
    expected.flat[seed] = True
    assert (connected_component(mask, seed).numpy() == expected).all()


def test_boxes_scale_from_patches_to_pixels():
    assert to_pixels((1, 0, 3, 2), (4, 3), (200, 300)) == (100, 0, 300, 100)


def test_overlap_of_half_open_boxes():
    for truth, iou in (
        ([0, 0, 10, 10], 1),
        ([5, 5, 15, 15], 25 / 175),
        ([20, 20, 30, 30], 0),
        ([10, 0, 20, 10], 0),
        ([3, 3, 3, 3], 0),
    ):
        assert best_iou([0, 0, 10, 10], [truth]) == pytest.approx(iou)
    assert best_iou([0, 0, 10, 10], [[5, 5, 15, 15], [0, 0, 10, 10]]) == 1
    assert best_iou([0, 0, 10, 10], []) == 0
    assert best_iou([3, 3, 3, 3], [[3, 3, 3, 3]]) == 0


def test_corloc_of_cases_made_by_hand():
    truth = [[[0, 0, 10, 10]], [[0, 0, 10, 10], [50, 50, 60, 60]], [[0, 0, 4, 4]], [[0, 0, 9, 9]]]
    predicted = [
        (0, 0, 10, 5),  # IoU exactly 0.5
        np.array([[50, 50, 60, 61], [0, 0, 1, 1]]),  # the first of several, any true box
        (0, 0, 4, 1.99),
        None,
    ]
    assert correct_localizations(predicted, truth).tolist() == [True, True, False, False]
    assert corloc(predicted, truth) == 50.0
    assert corloc(predicted, truth, threshold=0.4) == 75.0


def test_corloc_names_what_is_missing():
    with pytest.raises(ModelError, match="1 predictions for 2 images"):
        corloc([(0, 0, 1, 1)], [[], []])
    with pytest.raises(ModelError, match="no images"):
        corloc([], [])
