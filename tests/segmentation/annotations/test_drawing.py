"""Polygons, strokes and run lengths against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clearvit.segmentation.annotations import drawing
from clearvit.segmentation.annotations.drawing import (
    decode_runs,
    draw_stroke,
    encode_runs,
    fill_polygon,
    pack_runs,
    unpack_runs,
)

MASKS = arrays.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12)))


@settings(max_examples=60, deadline=None)
@given(mask=MASKS)
def test_run_lengths_give_the_mask_back(mask):
    runs = encode_runs(mask)
    assert sum(runs) == mask.size
    assert np.array_equal(decode_runs(runs, mask.shape), mask)
    assert unpack_runs(pack_runs(runs)) == runs


def test_runs_go_down_the_columns_and_begin_with_zeros():
    """The example of COCO's own documentation, as a column."""
    mask = np.array([[0, 0, 1, 1, 1, 0, 1]], dtype=bool).T
    assert encode_runs(mask) == [2, 3, 1, 1]
    assert encode_runs(np.array([[1, 1, 1, 1, 1, 1, 0]], dtype=bool).T) == [0, 6, 1]
    wide = np.zeros((2, 3), dtype=bool)
    wide[0, 1] = True
    assert encode_runs(wide) == [2, 1, 3]


def test_packed_runs_follow_the_published_scheme():
    """Pieces of five bits and, from the fourth number on, differences: 1 - 3 is -2."""
    assert pack_runs([2, 3, 1, 1]) == "231N"
    assert pack_runs([100]) == "T3"  # 100 = 4 + 3 * 32; 4 | 32 and then 3
    assert unpack_runs("T3") == [100]


@pytest.mark.parametrize("text", ["T", "\x10", "é", "T" * 40])
def test_damaged_text_is_refused(text):
    with pytest.raises(ValueError, match="run lengths"):
        unpack_runs(text)


def test_runs_of_another_size_are_refused():
    with pytest.raises(ValueError, match="do not fill"):
        decode_runs([3, 4], (2, 2))


def test_a_polygon_of_a_square_is_the_square():
    mask = fill_polygon([(2, 1), (6, 1), (6, 4), (2, 4)], (8, 10))
    inner = np.zeros((8, 10), dtype=bool)
    inner[1:4, 2:6] = True
    assert mask[inner].all()
    assert (mask & ~inner).sum() <= 8  # Pillow draws the outline too


@settings(max_examples=30, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(-5, 40), st.floats(-5, 30)), min_size=1, max_size=4),
    radius=st.floats(2, 8),
)
def test_a_stroke_is_what_lies_near_its_line(points, radius):
    mask = draw_stroke(points, radius, (25, 35))
    near = distance_to_line(points, (25, 35))
    assert mask[near <= radius - 1e-6].all()
    assert not mask[near > radius + 0.1].any()  # sampled lines are a little farther away


def distance_to_line(points, size):
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    best = np.full(size, np.inf)
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        steps = np.linspace(0, 1, 400)
        for px, py in zip(x0 + steps * (x1 - x0), y0 + steps * (y1 - y0), strict=True):
            best = np.minimum(best, np.hypot(x - px, y - py))
    return best


def test_a_click_marks_the_pixel_under_it():
    mask = draw_stroke([[3.2, 7.9]], 0, (10, 10))
    assert mask[7, 3] and mask.sum() == 1
    assert not draw_stroke([[30, 7]], 0, (10, 10)).any()


def test_bands_change_no_pixel(monkeypatch):
    points = [(3.5, 40.0), (55.0, 2.0), (20.0, 30.0)]
    whole = draw_stroke(points, 7.5, (50, 60))
    monkeypatch.setattr(drawing, "BAND", 100)
    assert (draw_stroke(points, 7.5, (50, 60)) == whole).all()
