import numpy as np
import pytest
import torch

from clearvit.artifacts.position import PositionSums, subtract_neighbors


def position_stats(features, grid, parts=1):
    sums = PositionSums()
    for part in torch.chunk(features, parts):
        sums.add(part, grid)
    return sums.result()


def images(count=12, grid=(10, 12), channels=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, grid[0] * grid[1], channels, generator=generator), grid


def test_local_difference_is_the_median_of_eight_neighbours():
    features, grid = images(count=1, channels=2)
    ours = subtract_neighbors(features, grid)[0].reshape(*grid, 2).numpy()
    values = features[0].reshape(*grid, 2).numpy()
    for y in range(1, grid[0] - 1):
        for x in range(1, grid[1] - 1):
            around = values[y - 1 : y + 2, x - 1 : x + 2].reshape(9, 2)
            others = np.sort(np.delete(around, 4, axis=0), axis=0)[3]  # torch takes the lower one
            assert np.allclose(ours[y, x], values[y, x] - others, atol=1e-6)


def test_unrelated_images_share_nothing():
    features, grid = images()
    result = position_stats(features, grid)
    assert result.ratio.mean() < 0.05
    assert result.find() is None


def test_a_smooth_habit_is_no_artifact():
    features, grid = images()
    slope = torch.linspace(0, 5, grid[0] * grid[1])[:, None]
    assert position_stats(features + slope, grid).find() is None


@pytest.mark.parametrize("count", [1, 3, 6])
def test_shared_places_are_found_and_no_other(count):
    features, grid = images()
    positions = torch.randperm(grid[0] * grid[1], generator=torch.Generator().manual_seed(1))[
        :count
    ]
    features[:, positions] += 3 * torch.randn(count, 16, generator=torch.Generator().manual_seed(2))
    result = position_stats(features, grid)
    mask = result.find()
    assert mask is not None
    assert set(mask.nonzero().flatten().tolist()) == set(positions.tolist())
    assert result.agreement[mask].min() > 0.8


def test_batches_change_nothing():
    features, grid = images()
    features[:, 7] += 4
    whole, parts = position_stats(features, grid), position_stats(features, grid, parts=5)
    assert torch.allclose(whole.ratio, parts.ratio, atol=1e-5)
    assert torch.allclose(whole.agreement, parts.agreement, atol=1e-5)


def test_three_images_cannot_tell():
    features, grid = images(count=3)
    features[:, 7] += 40
    assert position_stats(features, grid).find() is None


def test_a_grid_one_cell_wide_has_no_neighbours():
    features, _ = images(count=5, grid=(1, 9))
    assert position_stats(features, (1, 9)).find() is None
