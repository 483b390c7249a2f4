"""Mutual nearest neighbors against loops, and what counts as foreground."""

import torch
import torch.nn.functional as F

from clearvit.retrieval.matching.mutual_matches import (
    RETURN,
    center_pair,
    find_foreground,
    find_mutual,
    spread_matches,
)


def tokens(count, channels=16, seed=0):
    return torch.randn(count, channels, generator=torch.Generator().manual_seed(seed))


def test_matches_are_those_of_a_plain_loop():
    ours, theirs = center_pair(tokens(20, seed=1), tokens(30, seed=2))
    similarity = ours @ theirs.T
    expected = {}
    for row in range(20):
        column = max(range(30), key=lambda c, r=row: float(similarity[r, c]))
        back = max(range(20), key=lambda r, c=column: float(similarity[r, c]))
        apart = ((row // 5 - back // 5) ** 2 + (row % 5 - back % 5) ** 2) ** 0.5
        if apart <= RETURN:
            expected[row] = column
    found = find_mutual(similarity, (4, 5))
    assert dict(zip(found.query.tolist(), found.hit.tolist(), strict=True)) == expected
    assert found.strength.tolist() == sorted(found.strength.tolist(), reverse=True)


def test_the_mean_of_the_pair_is_taken_away():
    ours, theirs = tokens(12), tokens(12, seed=5)
    moved = [one + 7.0 for one in (ours, theirs)]
    for one, other in zip(center_pair(ours, theirs), center_pair(*moved), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_masked_patches_do_not_match():
    ours, theirs = center_pair(tokens(20, seed=1), tokens(20, seed=2))
    rows, columns = torch.arange(20) % 2 == 0, torch.arange(20) < 10
    found = find_mutual(ours @ theirs.T, (4, 5), rows=rows, columns=columns)
    assert len(found) and bool(rows[found.query].all()) and bool(columns[found.hit].all())


def test_lines_lie_apart_and_the_strongest_comes_first():
    ours, _ = center_pair(tokens(64), tokens(64))
    every = find_mutual(ours @ ours.T, (8, 8))
    chosen = spread_matches(every, (8, 8), 5, 3.0)
    assert int(chosen.query[0]) == int(every.query[0]) and 1 < len(chosen) <= 5
    places = torch.stack([chosen.query // 8, chosen.query % 8], 1).double()
    assert float(torch.pdist(places).min()) >= 3


def test_an_object_in_the_middle_is_foreground_and_a_scene_is_all_foreground():
    noise = 0.03 * tokens(200, seed=3)
    thing, ground = torch.eye(16)[0], torch.eye(16)[1]
    inside = torch.zeros(10, 10, dtype=torch.bool)
    inside[3:7, 3:8] = True
    image = torch.where(inside.flatten()[:, None], thing, ground)
    found = find_foreground(*center_pair(image + noise[:100], image + noise[100:]), ((10, 10),) * 2)
    assert all(torch.equal(one.reshape(10, 10), inside) for one in found)
    halves = torch.zeros(10, 10, dtype=torch.bool)
    halves[:5] = True
    scene = F.normalize(torch.where(halves.flatten()[:, None], thing, ground) + noise[:100], dim=1)
    assert all(bool(one.all()) for one in find_foreground(scene, scene, ((10, 10),) * 2))
