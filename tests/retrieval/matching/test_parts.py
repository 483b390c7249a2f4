"""Parts that are planted are found, where they are, and nothing is found in a stranger."""

import pytest
import torch

from clearvit.retrieval.matching.parts import NO_PART, find_parts

GRID = (12, 12)


def planted(places, seed, kinds=3, noise=0.15):
    """An image of noise with squares of the kinds 0, 1, … at some places (row, column)."""
    generator = torch.Generator().manual_seed(seed)
    looks = 3 * torch.randn(kinds, 128, generator=torch.Generator().manual_seed(99))
    image = torch.randn(*GRID, 128, generator=generator)
    for kind, (row, column) in enumerate(places):
        square = looks[kind].expand(3, 3, -1)
        image[row : row + 3, column : column + 3] = square + noise * torch.randn(
            3, 3, 128, generator=generator
        )
    return image.flatten(0, 1)


def test_parts_are_found_where_they_are():
    places, moved = [(2, 2), (2, 7), (7, 4)], [(7, 8), (1, 1), (4, 4)]
    found = find_parts(planted(places, 1), planted(moved, 2), (GRID, GRID))
    numbers = []
    for (row, column), (other_row, other_column) in zip(places, moved, strict=True):
        number = int(found.query_parts[row + 1, column + 1])
        assert number != NO_PART
        assert int(found.hit_parts[other_row + 1, other_column + 1]) == number
        numbers.append(number)
    assert sorted(numbers) == [0, 1, 2] and found.count == 3
    assert int(found.query_parts[0, 0]) == NO_PART and not bool(found.query_matched[0, 0])


def test_lines_join_a_part_to_itself():
    places, moved = [(2, 2), (2, 7), (7, 4)], [(7, 8), (1, 1), (4, 4)]
    found = find_parts(planted(places, 1), planted(moved, 2), (GRID, GRID))
    parts = found.part_of(found.lines)
    assert torch.equal(parts, found.hit_parts.flatten()[found.lines.hit])
    assert set(parts.tolist()) == {0, 1, 2}
    assert len(found.strength()) == 3 and min(found.strength()) > 0.5


def test_nothing_of_the_query_is_found_in_a_stranger():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(144, 128, generator=generator) + shift for shift in (1.0, -1.0))
    found = find_parts(ours, theirs, (GRID, GRID))
    assert found.count == 0 and len(found.lines) == 0 and not bool(found.query_matched.any())


def test_query_and_hit_may_have_different_grids():
    wide = planted([(2, 2)], 3)[: 12 * 8]  # the first rows only
    found = find_parts(wide, planted([(6, 6)], 4), ((8, 12), GRID))
    assert found.grids == ((8, 12), GRID)
    assert int(found.query_parts[3, 3]) == int(found.hit_parts[7, 7]) == 0


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_scale_of_the_tokens_does_not_matter(scale):
    ours, theirs = planted([(2, 2), (7, 4)], 1), planted([(7, 8), (1, 1)], 2)
    plain = find_parts(ours, theirs, (GRID, GRID))
    scaled = find_parts(scale * ours, scale * theirs, (GRID, GRID))
    assert torch.equal(plain.query_parts, scaled.query_parts)
    assert torch.equal(plain.hit_parts, scaled.hit_parts)


def test_an_image_without_variation_has_no_parts():
    found = find_parts(torch.ones(144, 128), torch.ones(144, 128), (GRID, GRID))
    assert found.count == 0
