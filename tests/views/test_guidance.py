import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.views import refine_by_image


def plain(maps, image, size, color):
    """The formula, pixel by pixel; the image has a whole number of pixels per cell and target."""
    cells, out = maps.shape[1:], torch.zeros(len(maps), *size)
    step = [image.shape[i + 1] // cells[i] for i in (0, 1)]
    coarse = image.unfold(1, step[0], step[0]).unfold(2, step[1], step[1]).mean((3, 4))
    for y in range(size[0]):
        for x in range(size[1]):
            row, column = (y + 0.5) * cells[0] / size[0] - 0.5, (x + 0.5) * cells[1] / size[1] - 0.5
            total, weights = torch.zeros(len(maps)), 0.0
            for i in range(round(row) - 2, round(row) + 3):
                for j in range(round(column) - 2, round(column) + 3):
                    if 0 <= i < cells[0] and 0 <= j < cells[1]:
                        apart = (image[:, y, x] - coarse[:, i, j]).square().sum()
                        far = (i - row) ** 2 + (j - column) ** 2
                        alike = torch.exp(-apart / (2 * color**2)) + 1e-3
                        weight = math.exp(-far / 2) * alike
                        total += weight * maps[:, i, j]
                        weights += weight
            out[:, y, x] = total / weights
    return out


def test_it_is_the_formula():
    rng = torch.Generator().manual_seed(0)
    maps, image = torch.randn(3, 4, 5, generator=rng), torch.rand(3, 4, 5, generator=rng)
    found = refine_by_image(maps[None], image[None], color=0.4)[0]
    assert torch.allclose(found, plain(maps, image, (4, 5), 0.4), atol=1e-5)


def test_an_edge_of_the_map_moves_to_the_edge_of_the_image():
    image = torch.zeros(1, 3, 32, 32)
    image[..., 14:] = 1.0  # inside the second of four cells
    maps = torch.tensor([0.0, 0.4, 1.0, 1.0]).expand(1, 1, 4, 4)
    found = refine_by_image(maps, image)[0, 0]
    assert bool((found[:, :14] < 0.5).all()) and bool((found[:, 14:] > 0.5).all())


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 4))
def test_properties(seed, side, factor):
    rng = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, 3, side, side + 1, generator=rng)
    images = torch.rand(2, 3, side * factor, (side + 1) * factor, generator=rng)
    found = refine_by_image(maps, images)
    assert found.shape == (2, 3, side * factor, (side + 1) * factor)
    assert bool((found <= maps.amax((2, 3), keepdim=True) + 1e-5).all())  # a mean of the cells
    assert torch.allclose(found.flip(0), refine_by_image(maps.flip(0), images.flip(0)), atol=1e-5)
    mirrored = refine_by_image(maps.flip(3), images.flip(3)).flip(3)
    assert torch.allclose(found, mirrored, atol=1e-4) or factor % 2 == 0  # ties of the nearest cell
    constant = refine_by_image(torch.ones_like(maps), images)
    assert torch.allclose(constant, torch.ones_like(constant), atol=1e-5)
