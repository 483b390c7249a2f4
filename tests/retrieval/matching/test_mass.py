"""The automatic mass: planted overlaps, ranks written out, and scores that can be compared."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching import mass
from clearvit.retrieval.matching.mass import LEAST, estimate_mass
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match


def overlapping(shared, cells=49, channels=64, noise=0.3, seed=0):
    """Two images of which `shared` cells show the same, at other places and with noise."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(cells, channels, generator=generator)
    hit = torch.randn(cells, channels, generator=generator)
    places = torch.randperm(cells, generator=generator)[:shared]
    hit[places] = query[:shared] + noise * torch.randn(shared, channels, generator=generator)
    return F.normalize(query, dim=1), F.normalize(hit, dim=1)


def transcribe(similarity, u, v):
    s = similarity.numpy()
    fractions = []
    for matrix, weights in ((s, u.numpy()), (s.T, v.numpy())):
        total = 0.0
        for row in range(len(matrix)):
            column = matrix[row].argmax()
            better = (matrix[:, column] > matrix[row, column]).sum()
            total += weights[row] * (better < 2)
        fractions.append(total)
    return min(1.0, max(LEAST, min(fractions)))


def test_ranks_tell_where_similarities_do_not_fall_into_groups():
    """Crops of one photo are similar everywhere; ranks find the overlap, a threshold does not."""
    scene = F.normalize(torch.randn(14, 7, 24, generator=torch.Generator().manual_seed(2)), dim=-1)
    scene = (scene + scene.roll(1, 0) + scene.roll(1, 1)).add(0.5)  # neighbors are alike
    uniform = torch.full((49,), 1 / 49)
    found = []
    for start in (0, 2, 4):  # rows that the second crop begins later
        one, other = (
            F.normalize(scene[first : first + 7].flatten(0, 1), dim=1) for first in (0, start)
        )
        found.append(float(estimate_mass(one @ other.T, uniform, uniform)))
    assert found[0] == 1 > found[1] > found[2]
    assert found[1:3] == pytest.approx([5 / 7, 3 / 7], abs=0.1)


def test_it_is_the_weight_of_patches_that_are_among_the_best_two_of_their_best(monkeypatch):
    monkeypatch.setattr(mass, "SEPARATE", 2.0)  # the ranks alone
    generator = torch.Generator().manual_seed(1)
    similarity = torch.rand(5, 12, 9, generator=generator)
    u, v = (F.normalize(torch.rand(5, n, generator=generator), p=1, dim=1) for n in (12, 9))
    found = estimate_mass(similarity, u, v)
    for i in range(5):
        assert float(found[i]) == pytest.approx(transcribe(similarity[i], u[i], v[i]), abs=1e-6)


@pytest.mark.parametrize("shared", [12, 25, 37, 49])
def test_a_planted_overlap_is_found(shared):
    uniform = torch.full((49,), 1 / 49)
    found = []
    for seed in range(5):
        query, hit = overlapping(shared, seed=seed)
        found.append(float(estimate_mass(query @ hit.T, uniform, uniform)))
    assert np.mean(found) == pytest.approx(shared / 49, abs=0.03)


def test_patches_without_weight_do_not_count():
    query, hit = overlapping(25)
    u = torch.full((49,), 1 / 49)
    v = u.clone()
    v[::2] = 0
    v /= v.sum()
    kept = v > 0
    all_of = estimate_mass(query @ hit.T, u, v)
    some = estimate_mass(query @ hit[kept].T, u, v[kept])
    assert float(all_of) == pytest.approx(float(some), abs=1e-6)


def test_the_complete_plan_has_the_marginals_whatever_the_mass():
    query, hit = overlapping(20)
    similarity = (query @ hit.T).double()
    u = F.normalize(torch.rand(49, dtype=torch.float64), p=1, dim=0)
    v = F.normalize(torch.rand(49, dtype=torch.float64), p=1, dim=0)
    for fraction in (0.2, 0.6, 1.0, "auto"):
        plan = transport(similarity, u, v, mass=fraction).complete_plan
        assert torch.allclose(plan.sum(1), u, atol=1e-9)
        assert torch.allclose(plan.sum(0), v, atol=1e-9)


def test_scores_of_different_mass_are_comparable():
    """The more two images share, the higher; the plain sum of partial plans need not do that."""
    scores = []
    for shared in (5, 15, 25, 35, 49):
        query, hit = overlapping(shared)
        images = LocalFeatures(query[None]), LocalFeatures(hit[None])
        scores.append(float(match(*images, Matching("transport", mass="auto")).score))
    assert scores == sorted(scores)
