"""The structure of patches: plain transcriptions, invariants and planted structure."""

import numpy as np
import pytest
import torch

from clearvit.artifacts.structure import measure_corners, measure_structure


def two_part_maps(count=4, channels=32, side=8, noise=0.3, seed=0):
    """Maps whose middle holds one direction and whose border another, with noise."""
    generator = torch.Generator().manual_seed(seed)
    inside, outside = torch.randn(2, channels, generator=generator)
    maps = noise * torch.randn(count, channels, side, side, generator=generator)
    maps += outside[:, None, None]
    maps[:, :, 2:-2, 2:-2] += (inside - outside)[:, None, None]
    return maps


def test_corners_are_those_of_a_plain_loop():
    maps = torch.randn(3, 5, 4, 6)
    unit = (maps / maps.norm(dim=1, keepdim=True)).numpy()
    corner, rest = [], []
    for y in range(4):
        for x in range(6):
            pairs = [unit[i, :, y, x] @ unit[j, :, y, x] for i in range(3) for j in range(i)]
            (corner if y in (0, 3) and x in (0, 5) else rest).append(np.mean(pairs))
    assert measure_corners(maps) == pytest.approx(np.mean(corner) - np.mean(rest), abs=1e-5)


def test_what_stands_in_every_corner_is_found():
    maps = torch.randn(4, 16, 6, 6)
    before = measure_structure(maps).corners
    maps[:, :, :: maps.shape[2] - 1, :: maps.shape[3] - 1] = 3.0
    assert abs(before) < 0.2 and measure_structure(maps).corners > 0.9


def test_two_parts_are_separated_and_noise_is_not():
    clear, noise = measure_structure(two_part_maps()), measure_structure(torch.randn(4, 32, 8, 8))
    assert clear.separation > 0.95 and clear.background < 0.2
    assert 0.45 < noise.separation < 0.6 and noise.background > 0.5


def test_masks_are_judged_by_their_own_classes():
    maps = two_part_maps()
    label = torch.zeros(8, 8, dtype=torch.long)
    label[2:-2, 2:-2] = 1
    label[0] = -1
    right = measure_structure(maps, [label, None]).label_separation
    wrong = measure_structure(maps, [label.flatten()[torch.randperm(64)].view(8, 8)])
    assert right > 0.95 and wrong.label_separation < 0.7
    assert measure_structure(maps, [torch.zeros(8, 8, dtype=torch.long)]).label_separation is None


def test_scale_mirroring_and_order_of_images_do_not_matter():
    maps = two_part_maps()
    first = measure_structure(maps)
    for other in (7 * maps, maps.flip(0), maps.flip(3)):
        again = measure_structure(other)
        for name, value in vars(first).items():
            assert value is None or getattr(again, name) == pytest.approx(value, abs=0.02), name


def test_one_image_and_one_patch_are_no_error():
    alone = measure_structure(torch.randn(1, 4, 1, 1))
    assert alone.corners is None and alone.separation == 0.5
