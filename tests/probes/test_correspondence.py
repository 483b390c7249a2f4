import numpy as np
import pytest
import torch

from clearvit.images import find_images
from clearvit.probes.correspondence import (
    map_points,
    match_patches,
    measure_warps,
    patch_centers,
    sample_warp,
    score_matches,
    warp_images,
)
from tests.helpers.made_data import colour_image, save_png

IDENTITY = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def test_centres_of_patches():
    assert patch_centers((1, 2)).tolist() == [[-0.5, 0], [0.5, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_points_are_where_the_warp_puts_them(seed):
    warp = sample_warp(seed)
    points = patch_centers((3, 4))
    there = map_points(points, warp)
    assert torch.allclose(there @ warp[:, :2].T + warp[:, 2], points, atol=1e-5)


def test_a_bright_pixel_moves_to_its_true_place():
    size, warp = 64, torch.tensor([[0.0, -1.0, 0.25], [1.0, 0.0, 0.0]])
    pixels = torch.zeros(1, 3, size, size)
    pixels[:, :, 20, 40] = 1
    point = torch.tensor([[(40 + 0.5) * 2 / size - 1, (20 + 0.5) * 2 / size - 1]])
    x, y = ((map_points(point, warp)[0] + 1) * size / 2 - 0.5).tolist()
    found = warp_images(pixels, warp)[0, 0].argmax()
    assert (int(found) % size, int(found) // size) == (round(x), round(y))


def test_matches_are_the_nearest_in_cosine():
    target = torch.randn(9, 5)
    assert match_patches(3 * target[[4, 2]], target).tolist() == [4, 2]


def test_tokens_that_move_with_the_photo_score_all_and_others_chance():
    target = torch.randn(64, 16)
    row = score_matches(target, target, (8, 8), IDENTITY, (64, 64), (0.01, 0.1))
    assert row.tolist() == [100, 100, 1]
    away = torch.tensor([[1.0, 0.0, 9.0], [0.0, 1.0, 0.0]])
    assert score_matches(target, target, (8, 8), away, (64, 64), (0.1,)).tolist() == [0, 0]
    shifted = torch.tensor([[1.0, 0.0, 0.25], [0.0, 1.0, 0.0]])  # one patch of eight
    source = target.unflatten(0, (8, 8)).roll(1, dims=1).flatten(0, 1)
    row = score_matches(source, target, (8, 8), shifted, (64, 64), (0.01,))
    assert row.tolist() == [100, 1]
    wrong = score_matches(torch.randn(64, 16), target, (8, 8), IDENTITY, (64, 64), (0.01,))
    assert wrong[0] < 20


def test_photos_are_measured_the_same_way_twice(tiny, tmp_path):
    for i in range(2):
        save_png(tmp_path / f"{i}.png", colour_image(i)[0])
    options = {"size": None, "alphas": (0.1, 0.3), "seed": 1}
    rows = measure_warps(tiny, find_images(tmp_path), **options)
    assert rows.shape == (2, 3) and (rows[:, 0] <= rows[:, 1]).all() and (rows[:, 2] == 1).all()
    assert np.array_equal(rows, measure_warps(tiny, find_images(tmp_path), **options))
