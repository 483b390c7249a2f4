import pytest
import torch
import torch.nn.functional as F

from clearvit.retrieval.config import Matching
from clearvit.retrieval.gate import choose_weight, gate_reranking, sample_gate
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.ranking_metrics import retrieval_metrics
from clearvit.retrieval.reranking import rerank
from clearvit.retrieval.whitening import Whitening
from tests.helpers.planted_collection import map_at_r, planted_collection, without_diagonal

CHAMFER = Matching("chamfer")


def test_the_gate_opens_where_re_ranking_helps():
    descriptors, images, labels = planted_collection(global_noise=2.5, local_noise=1.0)
    chosen = gate_reranking(descriptors, images, CHAMFER, top=20)
    assert chosen.weight > 0 and "is used" in chosen.note
    similarity = without_diagonal(descriptors)
    base = map_at_r(rerank(similarity, images, images, weight=0), labels)
    ranking = rerank(similarity, images, images, matching=CHAMFER, weight=chosen)
    assert map_at_r(ranking, labels) > base + 0.05
    assert ranking.weight == chosen.weight and ranking.note == chosen.note


def test_the_gate_keeps_the_ranking_by_descriptors_where_re_ranking_hurts():
    descriptors, _, labels = planted_collection(global_noise=1.5)
    _, other, _ = planted_collection()
    misleading = other[torch.randperm(len(labels))]  # similar, but not what the classes are
    similarity = without_diagonal(descriptors)
    base = map_at_r(rerank(similarity, misleading, misleading, weight=0), labels)
    hurt = rerank(similarity, misleading, misleading, matching=CHAMFER)
    assert map_at_r(hurt, labels) < base - 0.05
    chosen = gate_reranking(descriptors, misleading, CHAMFER, top=20)
    assert chosen.weight == 0 and "ranking by descriptors is kept" in chosen.note
    ranking = rerank(similarity, misleading, misleading, weight=chosen)
    assert map_at_r(ranking, labels) == base
    assert ranking.patch_similarity.isnan().all()  # nothing was computed in vain


def test_the_gate_sees_neighbors_become_mutual():
    """Noisy descriptors have hubs; patches know the true positions."""
    torch.manual_seed(0)
    angle = torch.rand(150) * 6.283
    signal = torch.stack([angle.cos(), angle.sin()], 1) @ torch.randn(2, 128)
    noise = 0.3 * torch.randn(150, 128) * (1 + 2 * torch.rand(150, 1))
    descriptors = F.normalize(signal + noise, dim=-1)
    similarity = (descriptors @ descriptors.T).fill_diagonal_(-9)
    candidates = similarity.topk(50, dim=1).indices
    true = (angle[:, None] - angle[None]).cos()
    helpful = choose_weight(descriptors, candidates, true.gather(1, candidates))
    assert helpful.weight > 0 and "mutual neighbors" in helpful.note
    random = torch.randn(150, 150)  # symmetric noise makes neighbors mutual, but no better
    symmetric = choose_weight(descriptors, candidates, (random + random.T).gather(1, candidates))
    assert symmetric.weight == 0


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_patches_that_see_the_pose_do_not_open_the_gate_of_a_decorrelated_descriptor(noise):
    """Patches know a part of what the descriptor knows, the pose, and nothing of the classes.

    With the first noise the strongest directions still stand out, with the second all are alike.
    """
    torch.manual_seed(0)
    labels = torch.arange(20).repeat_interleave(9)
    angle = torch.rand(len(labels)) * 6.283
    pose = torch.stack([wave(k * angle) for k in (1, 2, 3) for wave in (torch.cos, torch.sin)], 1)
    known = torch.cat([torch.randn(20, 24)[labels], pose], 1)
    network = known @ torch.randn(30, 192) / 5 + noise * torch.randn(len(labels), 192)
    descriptors = F.normalize(Whitening.fit(network, channels=128)(network), dim=-1)
    similarity = without_diagonal(descriptors)
    nearest = similarity.topk(50, dim=1)
    close = (pose @ pose.T / 3).gather(1, nearest.indices)
    chosen = choose_weight(descriptors, nearest.indices, close)
    assert chosen.weight == 0 and "decorrelated" in chosen.note
    better, worse = (  # what a weight would do: the smallest that the gate can choose
        retrieval_metrics(
            nearest.indices.gather(1, score.argsort(dim=1, descending=True)), labels
        ).map_at_r
        for score in (nearest.values, nearest.values + 0.05 * close)
    )
    assert worse < better - 0.02


def test_a_rotation_of_the_descriptors_changes_little_for_the_gate():
    """Channels of a network are as good as random directions."""
    descriptors, images, _ = planted_collection(global_noise=2.5, local_noise=1.0)
    rotation = torch.linalg.qr(torch.randn(96, 96)).Q
    for one in (descriptors, descriptors @ rotation):
        assert gate_reranking(one, images, CHAMFER, top=20).weight > 0


def test_the_gate_refuses_to_judge_by_too_little():
    descriptors, images, _ = planted_collection(classes=3, members=3)
    assert "9 images are too few" in gate_reranking(descriptors, images, Matching()).note
    none = gate_reranking(descriptors[:0], images[torch.arange(0)], CHAMFER)
    assert none.weight == 0 and "0 images are too few" in none.note
    descriptors, images, _ = planted_collection(channels=16)
    assert "16 channels are too few" in gate_reranking(descriptors, images, CHAMFER).note


def test_a_sample_is_judged_alike_alone_and_in_its_collection():
    descriptors, images, _ = planted_collection(global_noise=2.5, local_noise=1.0)
    chosen = sample_gate(len(descriptors), sample=30)
    assert len(chosen) == 30 and torch.equal(chosen, chosen.sort().values)
    whole = gate_reranking(descriptors, images, CHAMFER, sample=30)
    part = LocalFeatures(images.patches[chosen])
    assert gate_reranking(descriptors[chosen], part, CHAMFER) == whole
