import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.discovery.consensus_cut import consensus, mean_affinity
from clearvit.errors import ModelError
from tests.helpers.made_features import two_things


def test_the_affinity_is_the_mean_of_standardized_cosines():
    features = [torch.randn(9, 5), torch.randn(9, 7) + 2]
    expected = np.zeros((9, 9))
    for feature in features:
        unit = F.normalize(feature.double(), dim=1).numpy()
        cosine = unit @ unit.T
        centred = cosine - cosine[~np.eye(9, dtype=bool)].mean()
        expected += centred / np.sqrt((centred**2).mean()) / 2
    assert np.allclose(mean_affinity(features).numpy(), expected, atol=1e-4)


def test_patches_that_are_not_trusted_do_not_move_mean_and_spread():
    feature = torch.randn(9, 5)
    trusted = torch.arange(9) != 4
    part = mean_affinity([feature[trusted]])
    feature[4] = 100
    assert torch.allclose(mean_affinity([feature], trusted)[trusted][:, trusted], part, atol=1e-5)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_object_is_found_whatever_all_patches_share(shift):
    features, mask = two_things()
    (found,) = consensus([features + shift, features * 5], (8, 10))
    assert found.box == (2, 1, 6, 5) and (found.mask == mask).all()
    assert not found.degenerate


def test_several_objects_one_after_the_other_and_the_first_stays_first():
    directions = torch.eye(3, 16)
    kind = torch.zeros(10, 14, dtype=torch.long)
    kind[2:6, 1:5], kind[3:8, 8:12] = 1, 2
    features = directions[kind.flatten()] + 0.05 * torch.randn(140, 16)
    several = consensus([features], (10, 14), objects=3)
    (alone,) = consensus([features], (10, 14))
    assert several[0].box == alone.box and (several[0].mask == alone.mask).all()
    assert {one.box for one in several[:2]} == {(1, 2, 5, 6), (8, 3, 12, 8)}
    together = torch.stack([one.mask for one in several]).sum(0)
    assert together.max() == 1


def test_excluded_patches_change_nothing_but_follow_their_neighbors():
    features, mask = two_things()
    sick = features.clone()
    indices = torch.tensor([3 * 10 + 3, 6 * 10 + 8, 0])  # inside the object, outside, in a corner
    sick[indices] = 10 * torch.randn(16)
    exclude = torch.zeros(80, dtype=torch.bool)
    exclude[indices] = True
    (found,) = consensus([sick], (8, 10), exclude=exclude)
    assert found.box == (2, 1, 6, 5) and (found.mask == mask).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 99), st.integers(1, 4))
def test_seed_mask_and_box_belong_together(rows, columns, seed, objects):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows * columns, 6, generator=generator)
    for found in consensus([features], (rows, columns), objects=objects):
        x0, y0, x1, y1 = found.box
        assert 0 <= x0 < x1 <= columns and 0 <= y0 < y1 <= rows
        assert found.mask.flatten()[found.seed]
        assert found.mask[y0:y1, x0:x1].sum() == found.mask.sum()


def test_mirrored_features_give_the_mirrored_box():
    features, _ = two_things(noise=1.0)
    mirrored = features.unflatten(0, (8, 10)).flip(1).flatten(0, 1)
    (found,), (other,) = consensus([features], (8, 10)), consensus([mirrored], (8, 10))
    assert other.box == (10 - found.box[2], found.box[1], 10 - found.box[0], found.box[3])


def test_equal_patches_warn():
    with pytest.warns(UserWarning, match="same features"):
        (found,) = consensus([torch.ones(6, 4)], (2, 3))
    assert found.degenerate and found.box == (0, 0, 3, 2)


def test_nothing_to_work_on():
    with pytest.raises(ModelError, match="at least one feature"):
        consensus([], (2, 2))
    with pytest.raises(ModelError, match="objects >= 1"):
        consensus([torch.randn(4, 3)], (2, 2), objects=0)
