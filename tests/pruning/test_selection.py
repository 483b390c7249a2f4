import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.pruning.selection import (
    Choice,
    assign_most_similar,
    assign_preceding,
    deal_checkerboard,
    match_pairs,
    match_scored,
    merge_tokens,
    removes_pairs,
    select_top,
)


@st.composite
def sequences(draw, smallest=1):
    """Keys (B, K, d) and a count of patches to keep."""
    length = draw(st.integers(smallest, 40))
    seed = draw(st.integers(0, 10_000))
    key = torch.randn(3, length, 5, generator=torch.Generator().manual_seed(seed))
    return key, draw(st.integers(1, length))


def assert_valid(choice, length, count):
    """Kept ones ascend, are different, and represent themselves; all assigned ones exist."""
    assert choice.kept.shape[1] == count and choice.assignment.shape[1] == length
    assert (choice.kept.diff(dim=1) > 0).all()
    assert int(choice.assignment.min()) >= 0 and int(choice.assignment.max()) < count
    own = torch.arange(count).expand_as(choice.kept)
    assert torch.equal(choice.assignment.gather(1, choice.kept), own)


@given(sequences())
@settings(deadline=None, max_examples=30)
def test_top_scores_are_kept_in_order_and_the_most_similar_represent_the_others(sequence):
    key, count = sequence
    scores = key[..., 0]
    choice = assign_most_similar(key, select_top(scores, count))
    assert_valid(choice, key.shape[1], count)
    for image in range(len(key)):
        expected = sorted(np.argsort(-scores[image].numpy(), kind="stable")[:count].tolist())
        assert choice.kept[image].tolist() == expected
        unit = key[image].numpy() / np.linalg.norm(key[image].numpy(), axis=1, keepdims=True)
        for patch in set(range(key.shape[1])) - set(expected):
            chosen = expected[int(choice.assignment[image, patch])]
            similarities = unit[expected] @ unit[patch]
            assert unit[chosen] @ unit[patch] >= similarities.max() - 1e-5


@given(sequences())
@settings(deadline=None, max_examples=30)
def test_without_keys_the_one_before_represents(sequence):
    key, count = sequence
    choice = assign_preceding(select_top(key[..., 0], count), key.shape[1])
    assert_valid(choice, key.shape[1], count)
    kept = choice.kept[0].tolist()
    for patch, index in enumerate(choice.assignment[0].tolist()):
        assert kept[index] == max((k for k in kept if k <= patch), default=kept[0])


@given(sequences(smallest=2))
@settings(deadline=None, max_examples=30)
def test_merging_leaves_the_count_and_loses_nothing(sequence):
    key, count = sequence
    sizes = torch.randint(1, 4, key.shape[:2]).float()
    choice = match_pairs(key, sizes, count)
    assert_valid(choice, key.shape[1], count)
    values = torch.randn(*key.shape[:2], 7)
    means, held = merge_tokens(values, sizes, choice)
    assert torch.equal(held.sum(1), sizes.sum(1))
    before = (values * sizes[..., None]).sum(1)
    assert torch.allclose((means * held[..., None]).sum(1), before, atol=1e-4)


def test_one_round_merges_the_closest_pairs_across_the_halves():
    key = torch.randn(1, 9, 4, dtype=torch.float64)
    unit = (key / key.norm(dim=-1, keepdim=True))[0].numpy()
    pairs = {}
    for source in range(0, 9, 2):
        partner = max(range(1, 9, 2), key=lambda target: unit[source] @ unit[target])
        pairs[source] = (unit[source] @ unit[partner], partner)
    gone = sorted(pairs, key=lambda source: -pairs[source][0])[:3]
    choice = match_pairs(key, torch.ones(1, 9), 6)
    kept = choice.kept[0].tolist()
    assert kept == [patch for patch in range(9) if patch not in gone]
    for source in gone:
        assert kept[int(choice.assignment[0, source])] == pairs[source][1]


def test_an_average_is_weighted_by_size():
    choice = Choice(torch.tensor([[0, 2]]), torch.tensor([[0, 0, 1]]))
    means, held = merge_tokens(
        torch.tensor([[[1.0], [4.0], [9.0]]]), torch.tensor([[2.0, 1, 5]]), choice
    )
    assert means.flatten().tolist() == [2.0, 9.0] and held.tolist() == [[3.0, 5.0]]


@given(sequences(smallest=2), st.integers(0, 999))
@settings(deadline=None, max_examples=40)
def test_of_scores_only_their_order_counts(sequence, seed):
    key, count = sequence
    sizes = torch.ones(key.shape[:2])
    scores = torch.randn(key.shape[:2], generator=torch.Generator().manual_seed(seed))
    choice = match_pairs(key, sizes, count, scores)
    assert_valid(choice, key.shape[1], count)
    again = match_pairs(key, sizes, count, scores.sigmoid() * 7)
    assert torch.equal(choice.kept, again.kept) and torch.equal(choice.assignment, again.assignment)
    plain, level = (
        match_pairs(key, sizes, count),
        match_pairs(key, sizes, count, torch.ones_like(scores)),
    )
    assert torch.equal(plain.kept, level.kept) and torch.equal(plain.assignment, level.assignment)


def test_of_equally_similar_pairs_the_least_important_is_merged():
    half = torch.randn(1, 6, 5)
    key = half.repeat_interleave(2, dim=1)  # six pairs of twins, one of each half
    scores = torch.tensor([[5.0, 0, 1, 0, 4, 0, 0, 0, 3, 0, 2, 0]])
    for count in range(6, 12):
        kept = set(match_pairs(key, torch.ones(1, 12), count, scores).kept[0].tolist())
        gone = [position for position in (6, 2, 10, 8, 4, 0) if position not in kept]
        assert gone == [6, 2, 10, 8, 4, 0][: 12 - count]


@given(sequences(smallest=2), st.integers(0, 999))
@settings(deadline=None, max_examples=40)
def test_where_many_are_removed_the_scores_decide(sequence, seed):
    key, count = sequence
    scores = torch.randn(key.shape[:2], generator=torch.Generator().manual_seed(seed))
    choice = match_scored(key, torch.ones(key.shape[:2]), count, scores)
    assert_valid(choice, key.shape[1], count)
    assert removes_pairs(10, 6) and not removes_pairs(10, 5)
    if not removes_pairs(key.shape[1], count):
        assert torch.equal(choice.kept, select_top(scores, count))


@pytest.mark.parametrize("grid", [(4, 6), (3, 4), (5, 5), (2, 7), (1, 2), (1, 1)])
def test_on_a_checkerboard_all_neighbors_are_on_the_other_side(grid):
    height, width = grid
    first, second = (set(side.tolist()) for side in deal_checkerboard(grid, torch.device("cpu")))
    assert first | second == set(range(height * width)) and not first & second
    for row in range(height):
        for column in range(width):
            for near in ((row + 1, column), (row, column + 1)):
                if near[0] < height and near[1] < width:
                    index, other = row * width + column, near[0] * width + near[1]
                    assert (index in first) != (other in first)


def test_patches_of_one_column_can_be_merged():
    """Dealt alternately, a grid of even width had pairs along rows only."""
    columns = torch.eye(4)[None]  # every column has a key of its own
    key = columns.repeat(1, 2, 1)  # (1, 2 * 4, 4)
    sides = deal_checkerboard((2, 4), key.device)
    choice = match_pairs(key, torch.ones(1, 8), 4, sides=sides)
    assert_valid(choice, 8, 4)
    below = choice.assignment[0].view(2, 4)
    assert torch.equal(below[0], below[1])
