import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.report.pca import PCA, foreground


def colors_of(feature_map, **options):
    """Color one map (C, H, W) in its own basis, (H, W, 3)."""
    pca = PCA.fit(feature_map.flatten(1).T, **options)
    return pca.apply(feature_map.permute(1, 2, 0)).numpy()


def test_projection_as_numpy_svd():
    features = torch.randn(200, 6) * torch.tensor([5.0, 3, 2, 1, 0.5, 0.1])
    pca = PCA.fit(features)
    centered = features.double().numpy() - features.double().numpy().mean(0)
    directions = np.linalg.svd(centered, full_matrices=False)[2][:3].T
    directions *= np.sign(directions[np.abs(directions).argmax(0), range(3)])
    np.testing.assert_allclose(pca.basis.numpy(), directions, atol=1e-9)
    np.testing.assert_allclose(pca.project(features).numpy(), centered @ directions, atol=1e-9)
    expected = np.quantile(centered @ directions, [0.01, 0.99], axis=0)
    np.testing.assert_allclose(torch.stack([pca.low, pca.high]).numpy(), expected, atol=1e-9)


def test_a_basis_colors_other_features():
    raw, cured = torch.randn(50, 4), torch.randn(7, 7, 4)
    colors = PCA.fit(raw).apply(cured)
    assert colors.shape == (7, 7, 3)
    assert colors.min() >= 0 and colors.max() <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_any_number_of_tokens_channels_and_components(n, channels, components):
    torch.manual_seed(n * 7 + channels)
    image = colors_of(torch.randn(channels, n, 1), components=components)
    assert image.shape == (n, 1, 3)
    assert np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_features_are_gray_and_not_amplified_noise(value):
    image = colors_of(torch.full((8, 5, 5), value))
    np.testing.assert_array_equal(image, 0.5)


def test_one_component_is_gray():
    image = colors_of(torch.randn(4, 5, 5), components=1)
    assert np.ptp(image, axis=2).max() == 0 and np.ptp(image) == 1


def test_half_precision_and_gradients_are_welcome():
    features = torch.randn(4, 5, 5, dtype=torch.bfloat16, requires_grad=True)
    assert colors_of(features).dtype == np.float64


def test_nan_is_an_error_that_says_how_much():
    features = torch.randn(4, 5, 4)
    features[0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"5\.0% of the tokens hold NaN"):
        colors_of(features)


def object_on_a_wall():
    """A square of two parts on a wall that varies more than they do, (C, H, W)."""
    torch.manual_seed(0)
    features = 0.01 * torch.randn(6, 12, 12)
    features[0] += torch.linspace(-1, 1, 12)  # light on the wall
    features[1, 4:9, 4:9] = 8.0
    features[0, 4:9, 4:9] = 0.0
    features[2, 4:9, 4:6] = 0.5  # a part of the object
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[4:9, 4:9] = True
    return features, mask


def test_the_foreground_is_what_leaves_the_border_free():
    features, mask = object_on_a_wall()
    assert torch.equal(foreground(features), mask)
    assert torch.equal(foreground(-features), mask)
    assert foreground(torch.ones(4, 5, 5)).all()


def test_colors_of_the_foreground_tell_its_parts_apart():
    features, mask = object_on_a_wall()
    own = PCA.fit_foreground(features)
    assert torch.allclose(own.mean, features[:, mask].double().mean(1))
    assert own.basis[:, 0].abs().argmax() == 2  # the parts, which differ less than the wall does
    assert PCA.fit(features.flatten(1).T).basis[:, 0].abs().argmax() == 1
