import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.views import apply_view, shift_targets

sides = st.integers(1, 12)
shifts = st.integers(-14, 14)


def test_content_moves_up_and_left_for_positive_offsets():
    image = torch.zeros(1, 3, 8, 8)
    image[:, :, 4, 6] = 1
    view = apply_view(image, (2, 4), False, torch.full((3,), 9.0))
    assert view[0, 0, 2, 2] == 1
    assert (view[0, 0, -2:] == 9).all() and (view[0, 0, :, -4:] == 9).all()
    mirrored = apply_view(image, (2, 4), True, torch.full((3,), 9.0))
    assert torch.equal(mirrored, view.flip(3))


@given(size=st.tuples(sides, sides), dy=shifts, dx=shifts, flip=st.booleans())
def test_targets_move_as_the_content_does(size, dy, dx, flip):
    names = torch.arange(size[0] * size[1]).reshape(size).float() + 1
    view = apply_view(names.expand(1, 3, -1, -1), (dy, dx), flip, torch.zeros(3))
    moved, shown = shift_targets(names[..., None], (dy, dx), flip)
    assert torch.equal(moved[..., 0], view[0, 0])
    assert torch.equal(shown, view[0, 0] > 0)
