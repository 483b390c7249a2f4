import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.views import Views, apply_view, gather, lattice_views

offsets = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=4)


def gather_plainly(features, views, patch, scale, width):
    """Sum over all tokens of all views, cell by cell, with the distances written out."""
    _, _, height, width_, channels = features.shape
    cells = torch.zeros(height * scale, width_ * scale, channels)
    weights = torch.zeros(height * scale, width_ * scale)
    for n, ((dy, dx), flip) in enumerate(views.pairs()):
        for i in range(height):
            for j in range(width_):
                column = width_ - 1 - j if flip else j
                y, x = patch * (i + 0.5) + dy, patch * (column + 0.5) + dx
                seen = 1.0
                for center, length in ((y, height * patch), (x, width_ * patch)):
                    low, high = max(0, center - patch / 2), min(length, center + patch / 2)
                    seen *= max(0.0, high - low) / patch
                for a in range(height * scale):
                    for b in range(width_ * scale):
                        down = abs((a + 0.5) * patch / scale - y) / (width * patch)
                        right = abs((b + 0.5) * patch / scale - x) / (width * patch)
                        weight = max(0, 1 - down) * max(0, 1 - right) * seen
                        cells[a, b] += weight * features[0, n, i, j]
                        weights[a, b] += weight
    return cells / weights[..., None], weights


@settings(max_examples=20, deadline=None)
@given(shifts=offsets, scale=st.sampled_from([1, 2, 3]), data=st.data())
def test_the_mean_is_that_of_the_formula(shifts, scale, data):
    shifts = [(0, 0), *shifts]
    flips = data.draw(st.lists(st.booleans(), min_size=len(shifts), max_size=len(shifts)))
    views = Views(torch.tensor(shifts), torch.tensor(flips))
    features = torch.randn(1, len(views), 3, 4, 5)
    found = gather(features, views, patch=(6, 6), scale=scale, width=1.0)
    mean, weights = gather_plainly(features, views, 6, scale, 1.0)
    assert torch.allclose(found.weights, weights, atol=1e-5)
    assert torch.allclose(found.map[0], mean, atol=1e-4)


def test_whole_patch_views_on_the_own_grid_average_the_same_patch():
    views = Views(torch.tensor([[0, 0], [8, -16]]), torch.tensor([False, False]))
    features = torch.randn(1, 2, 6, 6, 4)
    found = gather(features, views, patch=(8, 8))
    expected = features[0, 0].clone()
    expected[1:, :4] = (features[0, 0, 1:, :4] + features[0, 1, :5, 2:]) / 2
    assert torch.allclose(found.map[0], expected, atol=1e-6)
    assert found.weights[2, 2] == 2 and found.weights[0, 0] == 1


@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("scale", [1, 2, 4])
def test_a_linear_ramp_comes_back_where_it_was(patch, scale):
    """A "network" that reads the mean of its patch: the fine grid must show the ramp in place."""
    height, width = 6 * patch, 5 * patch
    image = torch.linspace(0, 1, height)[:, None] + torch.linspace(0, 2, width)
    views = lattice_views((6, 5), 32, patch=(patch, patch), phases=4, fraction=0.2)
    shown = [
        apply_view(image.expand(1, 3, -1, -1), offset, flip, torch.zeros(3))
        for offset, flip in views.pairs()
    ]
    features = torch.nn.functional.avg_pool2d(torch.cat(shown), patch).permute(0, 2, 3, 1)
    found = gather(features[None], views, patch=(patch, patch), scale=scale).map[0, ..., 0]
    expected = torch.nn.functional.interpolate(
        image[None, None], (6 * scale, 5 * scale), mode="area"
    )[0, 0]
    inner = slice(2 * scale, -2 * scale)
    assert (found[inner, inner] - expected[inner, inner]).abs().max() < 0.03
    assert found.shape == expected.shape


def test_order_of_views_and_batches_changes_nothing():
    views = lattice_views((5, 4), 6, patch=(8, 8))
    features = torch.randn(2, 6, 5, 4, 3)
    both = gather(features, views, patch=(8, 8), scale=2)
    backwards = Views(views.offsets.flip(0), views.flips.flip(0))
    again = gather(features.flip(1), backwards, patch=(8, 8), scale=2)
    alone = gather(features[1:], views, patch=(8, 8), scale=2)
    assert torch.allclose(both.map, again.map, atol=1e-5)
    assert torch.allclose(both.map[1:], alone.map, atol=1e-6)
    assert torch.allclose(both.variance, again.variance, atol=1e-5)


def test_a_box_takes_the_tokens_whose_patch_holds_the_cell():
    views = Views(torch.zeros(1, 2).long(), torch.tensor([False]))
    features = torch.randn(1, 1, 3, 3, 2)
    found = gather(features, views, patch=(8, 8), scale=2, kernel="box", width=1.0)
    expected = features[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.allclose(found.map[0], expected)


def test_impossible_scales_and_uncovered_cells_are_named():
    views = Views(torch.tensor([[8, 0]]), torch.tensor([False]))
    with pytest.raises(ModelError, match="allows 1 to 8"):
        gather(torch.randn(1, 1, 3, 3, 2), views, patch=(8, 8), scale=9)
    with pytest.raises(ModelError, match="more views"):
        gather(torch.randn(1, 1, 3, 3, 2), views, patch=(8, 8))
