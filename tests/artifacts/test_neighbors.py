import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.artifacts.neighbors import auroc, neighbor_contrast, neighbor_similarity


def by_hand(map):
    """The definition, cell by cell, for one (C, H, W) array."""
    _, height, width = map.shape
    result = np.ones((height, width))
    for y in range(height):
        for x in range(width):
            around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            cosines = [
                map[:, y, x]
                @ map[:, v, u]
                / np.linalg.norm(map[:, y, x])
                / np.linalg.norm(map[:, v, u])
                for v, u in around
                if 0 <= v < height and 0 <= u < width
            ]
            result[y, x] = np.mean(cosines) if cosines else 1
    return result


def random_map(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


shapes = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
seeds = st.integers(0, 10_000)


@settings(deadline=None, max_examples=40)
@given(seeds, shapes)
def test_parity_with_the_definition(seed, shape):
    map = random_map(seed, shape)
    expected = np.stack([by_hand(m) for m in map.numpy()])
    np.testing.assert_allclose(neighbor_similarity(map).numpy(), expected, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(seeds, shapes, st.floats(-30, 30))
def test_scale_does_not_matter_not_even_per_cell(seed, shape, exponent):
    map = random_map(seed, shape).float()
    scale = 10**exponent * (0.5 + random_map(seed + 1, (shape[0], 1, *shape[2:])).abs().float())
    scaled = neighbor_similarity(map * scale)
    torch.testing.assert_close(scaled, neighbor_similarity(map), atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=40)
@given(seeds, shapes)
def test_a_constant_map_gives_one_and_channels_may_be_permuted(seed, shape):
    map = random_map(seed, shape)
    constant = map[:, :, :1, :1].expand(shape)
    torch.testing.assert_close(neighbor_similarity(constant), torch.ones_like(map[:, 0]))
    shuffled = map[:, torch.randperm(shape[1])]
    torch.testing.assert_close(neighbor_similarity(shuffled), neighbor_similarity(map))


def test_degenerate_maps_are_free_of_nan():
    assert neighbor_similarity(torch.randn(2, 3, 1, 1)).tolist() == [[[1.0]], [[1.0]]]
    assert neighbor_similarity(torch.zeros(1, 3, 4, 4)).eq(0).all()
    one_zero = torch.ones(1, 3, 1, 3)
    one_zero[..., 1] = 0
    assert neighbor_similarity(one_zero).tolist() == [[[0.0, 0.0, 0.0]]]
    assert neighbor_similarity(torch.ones(1, 4, 3, 3).half()).dtype == torch.float32


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=60))
def test_auroc_agrees_with_sklearn_and_with_counting_pairs(items):
    from sklearn.metrics import roc_auc_score

    scores = torch.tensor([float(score) for score, _ in items])
    positive = torch.tensor([flag for _, flag in items])
    found = auroc(scores, positive)
    if positive.all() or not positive.any():
        assert math.isnan(found)
        return
    assert found == pytest.approx(roc_auc_score(positive.numpy(), scores.numpy()), abs=1e-12)
    gaps = scores[positive][:, None] - scores[~positive]
    assert found == pytest.approx(
        float((gaps > 0).double().mean() + (gaps == 0).double().mean() / 2)
    )
    assert auroc(-scores, positive) == pytest.approx(1 - found)
    assert auroc(scores.exp() * 3, positive) == pytest.approx(found)


def planted(images=20, shift=0.3):
    similarity = torch.rand(images, 100) * 0.4
    outlier = torch.zeros(images, 100, dtype=torch.bool)
    outlier[:, :3] = True
    return similarity + shift * outlier, outlier


def test_contrast_finds_a_planted_difference():
    similarity, outlier = planted()
    found = neighbor_contrast(similarity, outlier)
    assert found.outlier == pytest.approx(float(similarity[outlier].mean()))
    assert found.normal == pytest.approx(float(similarity[~outlier].mean()))
    assert found.difference == pytest.approx(found.outlier - found.normal)
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.interval[0] > 0.2 and found.interval[1] < 0.4
    assert found.auroc > 0.9
    assert (found.outliers, found.normals, found.images) == (60, 1940, 20)
    assert found.conclusive and found.note == "60 outlier tokens in 20 images."


def test_densities_are_those_of_numpy_and_integrate_to_one():
    similarity, outlier = planted()
    found = neighbor_contrast(similarity, outlier, bins=17)
    widths = np.diff(found.edges)
    assert len(found.edges) == 18
    for density, mask in ((found.outlier_density, outlier), (found.normal_density, ~outlier)):
        expected, _ = np.histogram(similarity[mask].double().numpy(), found.edges, density=True)
        np.testing.assert_allclose(density, expected)
        assert np.sum(density * widths) == pytest.approx(1)


def test_the_interval_treats_images_as_the_unit():
    """Twenty copies of each image's one value carry no more information than one."""
    similarity = torch.rand(8, 1).expand(8, 40).clone()
    outlier = torch.zeros(8, 40, dtype=torch.bool)
    outlier[:, :20] = True
    similarity[:, 20:] = 0
    low, high = neighbor_contrast(similarity, outlier).interval
    by_image = similarity[:, 0].std() / 8**0.5
    assert high - low > 2.5 * by_image  # 3.9 standard errors, less the bias of so few images


def test_contrast_is_deterministic_and_the_seed_matters():
    similarity, outlier = planted(images=6)
    first = neighbor_contrast(similarity, outlier, seed=1)
    assert first == neighbor_contrast(similarity, outlier, seed=1)
    assert first.interval != neighbor_contrast(similarity, outlier, seed=2).interval


def test_few_outliers_are_not_conclusive():
    similarity, outlier = planted(images=6)
    outlier[2:] = False
    outlier[:, 2] = False
    found = neighbor_contrast(similarity, outlier)
    assert not found.conclusive
    assert found.note == (
        "only 4 outlier tokens in 2 images; at least 30 in 5 images are needed to conclude."
    )
    assert math.isfinite(found.auroc) and math.isfinite(found.interval[0])


@pytest.mark.parametrize("value", [False, True])
def test_one_kind_alone_gives_nan_and_no_crash(value):
    outlier = torch.full((6, 20), value)
    found = neighbor_contrast(torch.ones(6, 20), outlier)
    assert not found.conclusive and "nothing to compare" in found.note
    assert math.isnan(found.difference) and math.isnan(found.auroc)
    assert all(math.isnan(bound) for bound in found.interval)
    assert sum(found.outlier_density if not value else found.normal_density) == 0
