from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.cure.views import (
    Views,
    all_views,
    apply_view,
    brought_back,
    lattice_views,
    official_views,
    reach,
)
from clearvit.errors import ModelError

sides = st.integers(1, 12)


def test_official_views_are_those_of_the_published_code(golden):
    for name in ("astronaut_224", "chelsea_224", "chelsea_518"):
        side, count, seed = golden[f"{name}_settings"].tolist()
        views = official_views((side, side), count, seed=seed)
        assert views.offsets.tolist() == golden[f"{name}_offsets"].tolist()
        assert views.flips.int().tolist() == golden[f"{name}_flips"].tolist()
        assert views.counts((side, side)).tolist() == golden[f"{name}_counts"].tolist()


@pytest.mark.parametrize(("side", "largest"), [(37, 6), (28, 4), (16, 2), (14, 2), (10, 2)])
def test_the_reach_rounds_half_to_even_as_python_does(side, largest):
    assert reach((side, side)) == (largest, largest)


@given(
    grid=st.tuples(sides, sides),
    dy=st.integers(-14, 14),
    dx=st.integers(-14, 14),
    flip=st.booleans(),
)
def test_what_is_seen_comes_back_to_its_place(grid, dy, dx, flip):
    patch = (2, 3)
    names = torch.arange(grid[0] * grid[1]).reshape(grid).float() + 1
    picture = names.repeat_interleave(2, 0).repeat_interleave(3, 1).expand(1, 3, -1, -1)
    view = apply_view(picture, (dy, dx), flip, patch, torch.zeros(3))
    assert view.shape == picture.shape
    features = view[0, :1, ::2, ::3].permute(1, 2, 0)  # a "network" that reads the first pixel
    (rows, columns), inside = brought_back(features, (dy, dx), flip)
    assert torch.equal(inside[..., 0], names[rows, columns])
    counts = Views(torch.tensor([[dy, dx]]), torch.tensor([flip])).counts(grid)
    assert int(counts.sum()) == inside[..., 0].numel()
    assert int((view[0, 0] == 0).sum()) == 6 * (names.numel() - int(counts.sum()))


def test_content_moves_up_and_left_for_positive_offsets():
    picture = torch.zeros(1, 3, 8, 8)
    picture[:, :, 4, 6] = 1
    view = apply_view(picture, (1, 2), False, (2, 2), torch.full((3,), 9.0))
    assert view[0, 0, 2, 2] == 1
    assert (view[0, 0, -2:] == 9).all() and (view[0, 0, :, -4:] == 9).all()
    mirrored = apply_view(picture, (1, 2), True, (2, 2), torch.full((3,), 9.0))
    assert torch.equal(mirrored, view.flip(3))


@given(
    grid=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    count=st.integers(2, 24),
    seed=st.integers(0, 99),
)
def test_lattice_views_cover_every_patch_and_balance_the_flips(grid, count, seed):
    views = lattice_views(grid, count, seed=seed)
    assert (views.counts(grid) > 0).all()
    limit = torch.tensor(reach(grid))
    assert (views.offsets.abs() <= limit).all()
    assert abs(2 * int(views.flips.sum()) - len(views)) <= 1


def test_ten_lattice_views_at_224_pixels_hold_each_row_and_flip_once():
    views = lattice_views((16, 16), 10, seed=3)
    for axis in (0, 1):
        pairs = {
            (int(o), bool(f)) for o, f in zip(views.offsets[:, axis], views.flips, strict=True)
        }
        assert len(pairs) == 10


def test_enough_views_are_all_of_them():
    views = lattice_views((16, 16), 50)
    assert len(views) == 50 == len(all_views((16, 16)))
    assert (
        len(
            {
                (*o, f)
                for o, f in zip(
                    map(tuple, views.offsets.tolist()), views.flips.tolist(), strict=True
                )
            }
        )
        == 50
    )


def test_seeds_decide():
    first, again, other = (lattice_views((37, 37), 10, seed=s).offsets for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_wrong_views_are_named():
    with pytest.raises(ModelError, match="at least 1"):
        lattice_views((4, 4), 0)
    with pytest.raises(ModelError, match=r"share in \[0, 1\)"):
        official_views((4, 4), 2, fraction=1.5)
    with pytest.raises(ModelError, match="offsets"):
        Views(torch.zeros(3, 2), torch.zeros(2).bool())


@pytest.fixture(scope="module")
def golden():
    return np.load(Path(__file__).parents[1] / "golden" / "phreg_denoised.npz")
