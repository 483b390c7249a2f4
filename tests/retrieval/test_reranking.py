import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ModelError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match
from clearvit.retrieval.reranking import Nearest, find_nearest, rerank, rerank_nearest
from tests.helpers.planted_collection import map_at_r, planted_collection, without_diagonal

METHODS = ["transport", "mutual", "chamfer"]


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_sum_and_order_follows_them(method):
    descriptors, images, _ = planted_collection(classes=4, members=3)
    similarity = without_diagonal(descriptors)
    ranking = rerank(similarity, images, images, matching=Matching(method), weight=0.7, top=5)
    for i in range(12):
        order = sorted(range(12), key=lambda j: (-float(similarity[i, j]), j))
        matched = match(images[i : i + 1], images[torch.tensor(order[:5])], Matching(method)).score
        total = similarity[i, order[:5]] + 0.7 * matched
        head = [order[k] for k in np.argsort(-total.numpy(), kind="stable")]
        assert ranking.order[i].tolist() == head + order[5:]
        assert torch.allclose(ranking.score[i], total, atol=1e-5)
    assert ranking.order[:, -1].tolist() == list(range(12))  # the query itself, excluded by -inf
    assert ranking.valid.all() and "0.7 x patch similarity" in ranking.note


@pytest.mark.parametrize("method", METHODS)
def test_patches_lift_a_poor_global_ranking(method):
    descriptors, images, labels = planted_collection(global_noise=3.0)
    similarity = without_diagonal(descriptors)
    base = map_at_r(rerank(similarity, images, images, weight=0), labels)
    ranking = rerank(similarity, images, images, matching=Matching(method))
    assert map_at_r(ranking, labels) > base + 0.1


def test_a_broken_item_goes_to_the_end_of_the_list_and_disturbs_nobody():
    descriptors, images, _ = planted_collection(classes=3, members=3)
    similarity = without_diagonal(descriptors)
    healthy = rerank(similarity, images, images, top=6)
    broken = images.patches.clone()
    item = int(healthy.candidates[0, 0])
    broken[item] = torch.nan
    ranking = rerank(similarity[:1], images[:1], LocalFeatures(broken), top=6)
    assert int(ranking.order[0, 5]) == item
    expected = [j for j in healthy.order[0].tolist()[:6] if j != item]
    assert ranking.order[0, :5].tolist() == expected
    assert not ranking.valid[0, 0] and ranking.valid[0, 1:].all()


def test_ties_keep_the_global_order_and_k_may_exceed_the_collection():
    same = LocalFeatures(F.normalize(torch.ones(4, 9, 8), dim=-1))
    similarity = torch.tensor([[0.5, 0.9, 0.5, 0.7]])
    ranking = rerank(similarity, same[:1], same, top=100)
    assert ranking.order.tolist() == [[1, 3, 0, 2]]


def test_lists_of_a_search_rank_as_in_the_whole():
    descriptors, images, _ = planted_collection(classes=4, members=3)
    whole = rerank(without_diagonal(descriptors), images, images, top=6)
    nearest = find_nearest(descriptors[:3], descriptors, 9, exclude=torch.arange(3))
    ranking = rerank_nearest(nearest, images[:3], images, top=6)
    assert torch.equal(ranking.order, whole.order[:3, :9])
    torch.testing.assert_close(ranking.score, whole.score[:3])
    # One query and its own candidates only, as an index fetches them
    candidates = whole.candidates[2]
    one = Nearest(torch.arange(6)[None], whole.global_similarity[2:3])
    alone = rerank_nearest(one, images[2:3], images[candidates])
    assert candidates[alone.order[0]].tolist() == whole.order[2, :6].tolist()


def test_nearest_are_sorted_in_blocks_and_leave_out_what_is_excluded(monkeypatch):
    descriptors, _, _ = planted_collection(classes=4, members=3)
    exclude = torch.arange(12)
    exclude[5] = -1
    whole = find_nearest(descriptors, descriptors, 4, exclude=exclude)
    assert whole.order[5, 0] == 5 and not (whole.order == exclude[:, None]).any()
    monkeypatch.setattr("clearvit.retrieval.reranking.BLOCK", 5)
    blocks = find_nearest(descriptors, descriptors, 4, exclude=exclude)
    assert torch.equal(blocks.order, whole.order)


def test_another_weight_ranks_without_matching_again():
    descriptors, images, _ = planted_collection(global_noise=2.0)
    similarity = without_diagonal(descriptors)
    first = rerank(similarity, images, images, weight=1.0, top=20)
    for weight in (0.0, 0.3, 5.0):
        again = rerank(similarity, images, images, weight=weight, top=20)
        assert torch.equal(first.reweight(weight).order, again.order)


def test_half_precision_is_matched_in_single_precision():
    descriptors, images, _ = planted_collection(classes=3, members=2)
    half = LocalFeatures(images.patches.half(), torch.rand(6, 9), descriptors)
    single = LocalFeatures(half.patches.float(), half.weights, descriptors)
    for matching in (Matching(), Matching(cross="correlation"), Matching("chamfer")):
        found, expected = (match(x[:1], x, matching).score for x in (half, single))
        assert torch.equal(found, expected)


def test_wrong_arguments_are_refused():
    descriptors, images, _ = planted_collection(classes=2, members=2)
    similarity = descriptors @ descriptors.T
    with pytest.raises(ModelError, match=r"must be \(queries, items\)"):
        rerank(similarity[:, :2], images, images)
    with pytest.raises(ModelError, match="use 0"):
        rerank(similarity, images, images, weight=-1.0)
    with pytest.raises(ModelError, match="1 item or more"):
        rerank(similarity, images, images, top=0)
    with pytest.raises(ModelError, match="need descriptors"):
        rerank(similarity, images, images, matching=Matching(cross="correlation"))
