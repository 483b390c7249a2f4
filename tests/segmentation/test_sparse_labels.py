import numpy as np
import pytest
import torch

from clearvit.segmentation.sparse_labels import _filled, is_sparse


class Line:
    """Features of one image of 1 x 4 patches, each of which is its own number."""

    grid = (1, 4)

    def patches(self, _):
        return torch.arange(4.0)[None, :, None]


def classify(tokens):
    """Class 0 on the left, 2 on the right, 1 nearly everywhere; patch 1 is in doubt."""
    table = torch.tensor([[0.3, 0.7, 0.0], [0.1, 0.8, 0.1], [0.0, 0.7, 0.3], [0.0, 0.6, 0.4]])
    return table[tokens[:, 0].long()]


def fill(mask):
    return _filled(Line(), lambda _: mask, classify)(0)


def strokes(*labels):
    mask = np.full((8, 16), -1)
    for number, label in enumerate(labels):
        mask[0, 15 * number] = label
    return mask


def test_only_classes_of_the_image_are_given_and_only_where_the_fit_is_sure():
    mask = strokes(0, 2)
    found = fill(mask)
    assert is_sparse(mask) and found[0, 0] == 0 and found[0, 15] == 2  # what was drawn stays
    assert (found[:, :4] == 0).all() and (found[1:, 8:] == 2).all()
    assert (found[:, 4:8] == -1).all()  # both are as probable there


@pytest.mark.parametrize("mask", [strokes(2), np.zeros((8, 16), int)])
def test_strokes_of_one_class_and_whole_masks_stay_as_they_are(mask):
    assert np.array_equal(fill(mask), mask)
