import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ModelError
from clearvit.retrieval.guard import choose_weight, guard
from clearvit.retrieval.matching import Locals, Matching, chamfer, match, mutual
from clearvit.retrieval.metrics import retrieval_metrics
from clearvit.retrieval.rerank import rerank, rerank_list
from clearvit.retrieval.transport import transport

METHODS = ["transport", "mutual", "chamfer"]


def collection(classes=9, members=5, places=9, channels=96, global_noise=0.5, local_noise=0.5):
    """Descriptors (N, C), unit local vectors (N, R, C) and labels of a planted collection."""
    labels = torch.arange(classes).repeat_interleave(members)
    centres, parts = torch.randn(classes, channels), torch.randn(classes, places, channels)
    noise = torch.randn(len(labels), channels)
    descriptors = F.normalize(centres[labels] + global_noise * noise, dim=-1)
    local = parts[labels] + local_noise * torch.randn(len(labels), places, channels)
    return descriptors, F.normalize(local, dim=-1), labels


def without_diagonal(descriptors):
    return (descriptors @ descriptors.T).fill_diagonal_(-torch.inf)


def quality(ranking, labels):
    return retrieval_metrics(ranking.order, labels).map_at_r


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_sum_and_order_follows_them(method):
    descriptors, local, _ = collection(classes=4, members=3)
    similarity = without_diagonal(descriptors)
    ranking = rerank(similarity, local, local, method=method, weight=0.7, top=5)
    for i in range(12):
        order = sorted(range(12), key=lambda j: (-float(similarity[i, j]), j))
        matched = match(Locals(local[i : i + 1]), Locals(local[order[:5]]), Matching(method)).score
        total = similarity[i, order[:5]] + 0.7 * matched
        head = [order[k] for k in np.argsort(-total.numpy(), kind="stable")]
        assert ranking.order[i].tolist() == head + order[5:]
        assert torch.allclose(ranking.score[i], total, atol=1e-5)
    assert ranking.order[:, -1].tolist() == list(range(12))  # the query itself, excluded by -inf
    assert ranking.sound.all() and "0.7 x structural" in ranking.note


@pytest.mark.parametrize("method", METHODS)
def test_structure_lifts_a_poor_global_ranking(method):
    descriptors, local, labels = collection(global_noise=3.0)
    similarity = without_diagonal(descriptors)
    base = quality(rerank(similarity, local, local, weight=0), labels)
    assert quality(rerank(similarity, local, local, method=method), labels) > base + 0.1


def test_mutual_and_chamfer_are_their_formulas():
    similarity = torch.rand(6, 8)
    u, v = torch.rand(6), torch.rand(8)
    u[2], v[5] = 0, 0
    u, v = u / u.sum(), v / v.sum()
    rows, columns = [0, 1, 3, 4, 5], [0, 1, 2, 3, 4, 6, 7]
    best_row = {i: max(columns, key=lambda j: similarity[i, j]) for i in rows}
    best_column = {j: max(rows, key=lambda i: similarity[i, j]) for j in columns}
    pairs = [(i, j) for i, j in best_row.items() if best_column[j] == i]
    expected = sum(float((u[i] + v[j]) / 2 * similarity[i, j]) for i, j in pairs)
    assert float(mutual(similarity, u, v)) == pytest.approx(expected, abs=1e-6)
    by_rows = sum(float(u[i] * similarity[i, j]) for i, j in best_row.items())
    by_columns = sum(float(v[j] * similarity[i, j]) for j, i in best_column.items())
    expected = (by_rows + by_columns) / 2
    assert float(chamfer(similarity, u, v)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_an_image_matches_itself_best_and_zero_features_give_numbers(method):
    _, local, _ = collection(classes=3, members=2)
    scores = match(Locals(local[:1]), Locals(local), Matching(method)).score
    assert scores.argmax() == 0
    even = torch.full((9,), 1 / 9)
    if method != "transport":
        score = {"mutual": mutual, "chamfer": chamfer}[method](local[0] @ local[0].T, even, even)
        assert float(score) == pytest.approx(1.0, abs=1e-5)
    nothing = match(Locals(torch.zeros(1, 9, 96)), Locals(local), Matching(method))
    assert torch.allclose(nothing.score, torch.zeros(6), atol=1e-6)


def test_cross_correlation_without_agreement_is_flagged_and_uniform():
    descriptors, local, _ = collection(classes=3, members=2, channels=8)
    against = F.normalize(-local[:1].mean(1), dim=-1)
    for _ in range(50):  # into the cone where no location agrees
        against = F.normalize(
            against - 0.3 * (local[0] * (local[0] @ against[0] > 0)[:, None]).sum(0)
        )
    assert (local[0] @ against[0] <= 0).all()
    query = Locals(local[:1], descriptors=descriptors[:1])
    other = Locals(local[1:2], descriptors=against)
    found = match(query, other, Matching(cross=True))
    assert not found.sound.any() and found.score.isfinite().all()


def test_a_broken_item_goes_to_the_end_of_the_list_and_disturbs_nobody():
    descriptors, local, _ = collection(classes=3, members=3)
    similarity = without_diagonal(descriptors)
    healthy = rerank(similarity, local, local, top=6)
    broken = local.clone()
    place = int(healthy.candidates[0, 0])
    broken[place] = torch.nan
    ranking = rerank(similarity[:1], local[:1], broken, top=6)
    assert int(ranking.order[0, 5]) == place
    expected = [j for j in healthy.order[0].tolist()[:6] if j != place]
    assert ranking.order[0, :5].tolist() == expected
    assert not ranking.sound[0, 0] and ranking.sound[0, 1:].all()


def test_ties_keep_the_global_order_and_k_may_exceed_the_collection():
    same = F.normalize(torch.ones(4, 9, 8), dim=-1)
    similarity = torch.tensor([[0.5, 0.9, 0.5, 0.7]])
    ranking = rerank(similarity, same[:1], same, top=100)
    assert ranking.order.tolist() == [[1, 3, 0, 2]]


def test_a_list_of_a_search_ranks_as_in_the_whole():
    descriptors, local, _ = collection(classes=4, members=3)
    whole = rerank(without_diagonal(descriptors), local, local, top=6)
    candidates = whole.candidates[2]
    row = rerank_list(whole.global_similarity[2], local[2], local[candidates])
    assert candidates[row.order[0]].tolist() == whole.order[2, :6].tolist()


def test_weights_and_partial_mass_reach_transport():
    _, local, _ = collection(classes=2, members=2)
    weights = torch.rand(4, 9)
    images = Locals(local, weights)
    found = match(images[:1], images[1:], Matching(mass=0.6, epsilon=0.1))
    for k in range(3):
        direct = transport(local[0] @ local[k + 1].T, weights[0], weights[k + 1], 0.1, 0.6)
        assert float(found.score[k]) == pytest.approx(float(direct.score), abs=1e-5)
    assert torch.allclose(found.mass, torch.tensor(0.6))


def test_the_guard_takes_structure_where_it_helps():
    descriptors, local, labels = collection(global_noise=2.5, local_noise=1.0)
    chosen = guard(descriptors, local, method="chamfer", top=20)
    assert chosen.helps and "is used with weight" in chosen.note
    similarity = without_diagonal(descriptors)
    base = quality(rerank(similarity, local, local, weight=0), labels)
    ranking = rerank(similarity, local, local, method="chamfer", weight=chosen)
    assert quality(ranking, labels) > base + 0.05
    assert ranking.weight == chosen.weight and ranking.note == chosen.note


def test_the_guard_keeps_the_global_ranking_where_structure_hurts():
    descriptors, _, labels = collection(global_noise=1.5)
    _, misleading, _ = collection()
    misleading = misleading[torch.randperm(len(labels))]  # alike, but not what the classes are
    similarity = without_diagonal(descriptors)
    base = quality(rerank(similarity, misleading, misleading, weight=0), labels)
    assert (
        quality(rerank(similarity, misleading, misleading, method="chamfer"), labels) < base - 0.05
    )
    chosen = guard(descriptors, misleading, method="chamfer", top=20)
    assert not chosen.helps and "the global ranking is kept" in chosen.note
    ranking = rerank(similarity, misleading, misleading, weight=chosen)
    assert quality(ranking, labels) == base
    assert ranking.structural.isnan().all()  # nothing was computed in vain


def test_the_guard_sees_neighbours_become_mutual():
    """Noisy descriptors have favourites; structure knows the places."""
    torch.manual_seed(0)
    angle = torch.rand(150) * 6.283
    place = torch.stack([angle.cos(), angle.sin()], 1) @ torch.randn(2, 128)
    noise = 0.3 * torch.randn(150, 128) * (1 + 2 * torch.rand(150, 1))
    descriptors = F.normalize(place + noise, dim=-1)
    similarity = (descriptors @ descriptors.T).fill_diagonal_(-9)
    candidates = similarity.topk(50, dim=1).indices
    true = (angle[:, None] - angle[None]).cos()
    helpful = choose_weight(descriptors, candidates, true.gather(1, candidates))
    assert helpful.helps and helpful.mutual_gains[helpful.weight].low > 0
    assert "mutual neighbours" in helpful.note
    chance = torch.randn(150, 150)
    symmetric = choose_weight(descriptors, candidates, (chance + chance.T).gather(1, candidates))
    assert max(gain.low for gain in symmetric.mutual_gains.values()) > 0  # mutual, but no better
    assert not symmetric.helps


def test_the_guard_can_judge_by_another_view():
    centres = torch.randn(60, 16)
    first, second = (centres + noise * torch.randn(60, 16) for noise in (1.5, 0.3))
    true = F.normalize(centres, dim=-1) @ F.normalize(centres, dim=-1).T
    candidates = true.clone().fill_diagonal_(-9).topk(20, dim=1).indices
    helpful = true.gather(1, candidates)
    assert choose_weight(first, candidates, helpful, view=second).helps
    assert not choose_weight(first, candidates, torch.rand(60, 20), view=second).helps


def test_the_guard_refuses_to_judge_by_too_little():
    descriptors, local, _ = collection(classes=3, members=3)
    assert "9 images nobody can tell" in guard(descriptors, local).note
    descriptors, local, _ = collection(channels=16)
    assert "16 channels nobody can tell" in guard(descriptors, local, method="chamfer").note


def test_wrong_arguments_are_refused():
    descriptors, local, _ = collection(classes=2, members=2)
    similarity = descriptors @ descriptors.T
    with pytest.raises(ModelError, match=r"Closest: chamfer"):
        rerank(similarity, local, local, method="chamfre")
    with pytest.raises(ModelError, match=r"must be \(queries, items\)"):
        rerank(similarity[:, :2], local, local)
    with pytest.raises(ModelError, match="use 0"):
        rerank(similarity, local, local, weight=-1.0)
    with pytest.raises(ModelError, match="look at 1 item"):
        rerank(similarity, local, local, top=0)
    with pytest.raises(ModelError, match="needs descriptors"):
        rerank(similarity, local, local, method=Matching(cross=True))
