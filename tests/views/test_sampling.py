import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.views import Views, all_views, lattice_views, official_views
from clearvit.views.sampling import phases_for, reach
from tests.helpers import GOLDEN

sides = st.integers(2, 40)
PATCH = (14, 14)


@pytest.mark.parametrize("name", ["astronaut_224", "chelsea_224", "chelsea_518"])
def test_official_views_are_those_of_the_published_code(name):
    golden = np.load(GOLDEN / "phreg_denoised.npz")
    side, count, seed = golden[f"{name}_settings"].tolist()
    views = official_views((side, side), count, patch=PATCH, seed=seed)
    assert (views.offsets / 14).tolist() == golden[f"{name}_offsets"].tolist()
    assert views.flips.int().tolist() == golden[f"{name}_flips"].tolist()


@pytest.mark.parametrize(("side", "largest"), [(37, 6), (28, 4), (16, 2), (14, 2), (10, 2)])
def test_the_reach_rounds_half_to_even_as_python_does(side, largest):
    assert reach((side, side)) == (largest, largest)


@given(
    grid=st.tuples(sides, sides),
    count=st.integers(2, 40),
    phases=st.sampled_from([1, 2, 3, 4, 7]),
    seed=st.integers(0, 99),
)
def test_lattice_views_stay_in_reach_and_balance_phases_and_flips(grid, count, phases, seed):
    views = lattice_views(grid, count, patch=PATCH, phases=phases, seed=seed)
    limit = 14 * torch.tensor(reach(grid))
    assert (views.offsets >= -limit).all() and (views.offsets < limit + 14).all()
    assert abs(2 * int(views.flips.sum()) - len(views)) <= 2
    fine = views.offsets % 14
    allowed = {round(f * 14 / phases) for f in range(phases)}
    assert set(fine.flatten().tolist()) <= allowed
    table = torch.bincount(fine[:, 0] * 14 + fine[:, 1], minlength=196)
    used = table[[a * 14 + b for a in allowed for b in allowed]]
    assert int(used.max()) - int(used.min()) <= 1


@given(grid=st.tuples(sides, sides), count=st.integers(2, 24), seed=st.integers(0, 99))
def test_every_patch_is_in_a_whole_patch_view(grid, count, seed):
    views = lattice_views(grid, count, patch=(1, 1), phases=1, seed=seed)
    seen = torch.zeros(grid, dtype=torch.bool)
    for dy, dx in views.offsets.tolist():
        seen[max(0, dy) : grid[0] + min(0, dy), max(0, dx) : grid[1] + min(0, dx)] = True
    assert seen.all()


def test_ten_whole_patch_views_at_224_pixels_hold_each_row_and_flip_once():
    views = lattice_views((16, 16), 10, patch=PATCH, phases=1, seed=3)
    for axis in (0, 1):
        offsets = views.offsets[:, axis].tolist()
        assert len(set(zip(offsets, views.flips.tolist(), strict=True))) == 10


def test_four_views_hold_the_four_half_patch_phases():
    views = lattice_views((16, 16), 4, patch=PATCH)
    assert {tuple(o) for o in (views.offsets % 14).tolist()} == {(0, 0), (0, 7), (7, 0), (7, 7)}


@pytest.mark.parametrize("phases", [1, 2])
def test_enough_views_are_all_of_them(phases):
    total = 50 * phases**2
    views = lattice_views((16, 16), total, patch=PATCH, phases=phases)
    assert len(views) == total == len(set(views.pairs()))
    assert len(all_views((16, 16), patch=PATCH, phases=phases)) == total


def test_phases_follow_the_scale_as_far_as_views_allow():
    assert phases_for(10, PATCH, 1) == 2 and phases_for(3, PATCH, 1) == 1
    assert phases_for(16, PATCH, 4) == 4 and phases_for(10, PATCH, 4) == 3
    assert phases_for(1, PATCH, 2) == 1 and phases_for(999, (2, 2), 8) == 2


def test_seeds_decide():
    first, again, other = (
        lattice_views((37, 37), 10, patch=PATCH, seed=s).offsets for s in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_wrong_views_are_named():
    with pytest.raises(ModelError, match="at least 1"):
        lattice_views((4, 4), 0, patch=PATCH)
    with pytest.raises(ModelError, match=r"\[0, 1\)"):
        official_views((4, 4), 2, patch=PATCH, fraction=1.5)
    with pytest.raises(ModelError, match="offsets"):
        Views(torch.zeros(3, 2), torch.zeros(2).bool())
