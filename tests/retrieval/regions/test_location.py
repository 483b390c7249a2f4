"""A part of a grid of distinct patches is found where it was cut out."""

import pytest
import torch
import torch.nn.functional as F

from clearvit.retrieval.regions.location import LENGTHS, STEPS, locate


def worth(maps, part, whole, box):
    """Mean similarity of the patches of a part laid over a box, one by one."""
    left, top, right, bottom = box
    total = 0.0
    for i in range(part[0]):
        for j in range(part[1]):
            y = (top + (i + 0.5) / part[0] * (bottom - top)) * whole[0] - 0.5
            x = (left + (j + 0.5) / part[1] * (right - left)) * whole[1] - 0.5
            y, x = min(max(y, 0), whole[0] - 1), min(max(x, 0), whole[1] - 1)
            for a in range(whole[0]):
                for b in range(whole[1]):
                    near = max(0, 1 - abs(y - a)) * max(0, 1 - abs(x - b))
                    total += near * float(maps[i, j, a, b])
    return total / (part[0] * part[1])


def test_the_box_is_the_best_of_all_by_the_plain_formula():
    part, whole = (2, 3), (4, 3)
    similarity = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    maps = similarity.reshape(*part, *whole)

    def spans(over):
        for length in LENGTHS:
            start = 0
            while start / (STEPS * over) + length <= 1 + 1e-6:
                yield start / (STEPS * over), min(1.0, start / (STEPS * over) + length)
                start += 1

    boxes = [
        (x0, y0, x1, y1)
        for y0, y1 in spans(whole[0])
        for x0, x1 in spans(whole[1])
        if 0.5 - 1e-6 <= (y1 - y0) / (x1 - x0) <= 2 + 1e-6
    ]
    values = [worth(maps, part, whole, box) for box in boxes]
    found = locate(similarity, part, whole)
    assert worth(maps, part, whole, found) == pytest.approx(max(values), abs=1e-5)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 1), (4, 4)])
def test_a_quarter_is_found_where_it_was(row, column):
    patches = F.normalize(torch.randn(8, 8, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    part = patches[row : row + 4, column : column + 4].reshape(16, 64)
    left, top, right, bottom = locate(part @ patches.reshape(64, 64).T, (4, 4), (8, 8))
    expected = (column / 8, row / 8, column / 8 + 0.5, row / 8 + 0.5)
    assert (left, top, right, bottom) == pytest.approx(expected, abs=0.04)
