import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.report.pca import PCA, otsu, pca_pictures


def test_projection_as_numpy_svd():
    features = torch.randn(200, 6) * torch.tensor([5.0, 3, 2, 1, 0.5, 0.1])
    pca = PCA.fit(features)
    centred = features.double().numpy() - features.double().numpy().mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:3].T
    directions *= np.sign(directions[np.abs(directions).argmax(0), range(3)])
    np.testing.assert_allclose(pca.basis.numpy(), directions, atol=1e-9)
    np.testing.assert_allclose(pca.project(features).numpy(), centred @ directions, atol=1e-9)
    expected = np.quantile(centred @ directions, [0.01, 0.99], axis=0)
    np.testing.assert_allclose(torch.stack([pca.low, pca.high]).numpy(), expected, atol=1e-9)


def test_pictures_share_one_basis_and_keep_their_grids():
    first, second = torch.randn(5, 3, 4), torch.randn(5, 6, 2)
    pictures = pca_pictures([first, second])
    assert [p.shape for p in pictures] == [(3, 4, 3), (6, 2, 3)]
    pca = PCA.fit(torch.cat([first.flatten(1).T, second.flatten(1).T]))
    np.testing.assert_allclose(pictures[1], pca.apply(second.permute(1, 2, 0)).numpy())
    np.testing.assert_array_equal(pictures[0], pca_pictures([first, second])[0])


def test_a_basis_colours_other_features():
    raw, cured = torch.randn(50, 4), torch.randn(7, 7, 4)
    colours = PCA.fit(raw).apply(cured)
    assert colours.shape == (7, 7, 3)
    assert colours.min() >= 0 and colours.max() <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_any_number_of_tokens_channels_and_components(n, channels, components, foreground):
    torch.manual_seed(n * 7 + channels)
    (picture,) = pca_pictures(
        [torch.randn(channels, n, 1)], components=components, foreground=foreground
    )
    assert picture.shape == (n, 1, 3)
    assert np.isfinite(picture).all() and picture.min() >= 0 and picture.max() <= 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_features_are_grey_and_not_amplified_noise(value):
    (picture,) = pca_pictures([torch.full((8, 5, 5), value)])
    np.testing.assert_array_equal(picture, 0.5)


def test_one_component_is_grey():
    (picture,) = pca_pictures([torch.randn(4, 5, 5)], components=1)
    assert np.ptp(picture, axis=2).max() == 0 and np.ptp(picture) == 1


def test_half_precision_and_gradients_are_welcome():
    features = torch.randn(4, 5, 5, dtype=torch.bfloat16, requires_grad=True)
    assert pca_pictures([features])[0].dtype == np.float64


def test_nan_is_an_error_that_says_how_much():
    features = torch.randn(4, 5, 4)
    features[0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"5\.0% of the tokens hold NaN"):
        pca_pictures([features])


def test_foreground_is_the_part_off_the_border():
    scene = torch.randn(6, 12, 12) * 0.1
    scene[:3, 3:9, 3:9] += 4
    (picture,) = pca_pictures([scene], foreground=True)
    white = (picture == 1).all(axis=2)
    assert not white[3:9, 3:9].any()
    white[3:9, 3:9] = True
    assert white.all()


def test_otsu_as_exhaustive_search():
    values = torch.cat([torch.randn(40), torch.randn(25) * 0.5 + 4]).double()
    cuts = values.sort().values

    def within(cut):
        low, high = values[values <= cut], values[values > cut]
        return len(low) * low.var(correction=0) + len(high) * high.var(correction=0)

    best = min(cuts[:-1], key=within)
    assert ((values > otsu(values)) == (values > best)).all()


def test_no_maps_no_pictures_and_too_many_components():
    assert pca_pictures([]) == []
    with pytest.raises(ModelError, match="1 to 3 components"):
        pca_pictures([torch.randn(4, 2, 2)], components=4)
