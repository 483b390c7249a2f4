import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.retrieval.matching.pooling import pool_patches, pool_weights

sides = st.integers(1, 12)


@settings(max_examples=30, deadline=None)
@given(h=sides, w=sides, to_h=sides, to_w=sides)
def test_area_is_exact(h, w, to_h, to_w):
    """Repeating each patch until the cells divide the grid makes plain averages exact."""
    patches = torch.randn(2, h * w, 3)
    image = patches.transpose(1, 2).unflatten(2, (h, w))
    fine = image.repeat_interleave(to_h, 2).repeat_interleave(to_w, 3)
    expected = F.avg_pool2d(fine, (h, w)).flatten(2).transpose(1, 2)
    found = pool_patches(patches, (h, w), (to_h, to_w))
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found.mean(1), patches.mean(1), atol=1e-5)


def test_patches_that_are_not_kept_leave_no_trace():
    patches = torch.randn(2, 16, 3)
    keep = torch.ones(2, 16, dtype=torch.bool)
    keep[0, 5] = False
    spoilt = patches.clone()
    spoilt[0, 5] = 1e4
    found = pool_patches(spoilt, (4, 4), (2, 2), keep=keep)
    assert torch.allclose(found[0, 0], patches[0, [0, 1, 4]].mean(0), atol=1e-3)
    assert torch.allclose(found[1], pool_patches(patches, (4, 4), (2, 2))[1], atol=1e-6)
    keep[0, [0, 1, 4]] = False  # a cell without anything left averages all it has
    found = pool_patches(patches, (4, 4), (2, 2), keep=keep)
    assert torch.allclose(found, pool_patches(patches, (4, 4), (2, 2)), atol=1e-6)


def test_weights_keep_their_mass_where_it_is():
    weights = torch.zeros(16 * 16)
    weights[0] = 1.0
    pooled = pool_weights(weights, (16, 16))
    assert pooled.shape == (49,) and float(pooled[0]) == pytest.approx(1.0)
    even = pool_weights(torch.full((3, 256), 1 / 256), (16, 16))
    assert torch.allclose(even, torch.full((3, 49), 1 / 49), atol=1e-6)


def test_wrong_grids_are_refused():
    with pytest.raises(ModelError, match="do not fill a grid of 4 x 5"):
        pool_patches(torch.rand(1, 16, 3), (4, 5))
    with pytest.raises(ModelError, match="at least 1"):
        pool_patches(torch.rand(1, 16, 3), (4, 4), (0, 2))
