"""Query expansion and k-reciprocal re-ranking against plain transcriptions of the papers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ModelError
from clearvit.retrieval.neighbor_reranking import (
    expand_query,
    reciprocal_distances,
    score_by_neighbors,
)


def clustered(count=36, groups=4, channels=16, noise=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(groups, channels, generator=generator)
    labels = torch.arange(count) % groups
    vectors = centers[labels] + noise * torch.randn(count, channels, generator=generator)
    return F.normalize(vectors, dim=1).double(), labels


def transcribe_reciprocal(vectors, k1, k2, kept):
    """k-reciprocal re-ranking as in Zhong et al., sets written as sets."""
    v = vectors.numpy()
    plain = np.maximum(2 - 2 * v @ v.T, 0)
    np.fill_diagonal(plain, 0)
    plain = plain / plain.max(1, keepdims=True)
    order = np.argsort(plain, axis=1, kind="stable")

    def reciprocal(i, k):
        return {j for j in order[i, : k + 1] if i in order[j, : k + 1]}

    sets = np.zeros_like(plain)
    for i in range(len(v)):
        members = reciprocal(i, k1)
        grown = set(members)
        for j in members:
            half = reciprocal(j, max(1, round(k1 / 2)))
            if len(half & members) >= 2 / 3 * len(half):
                grown |= half
        for j in grown:
            sets[i, j] = np.exp(-plain[i, j])
        sets[i] /= sets[i].sum()
    smooth = np.stack([sets[order[i, :k2]].mean(0) for i in range(len(v))])
    jaccard = np.zeros_like(plain)
    for i in range(len(v)):
        for j in range(len(v)):
            low, high = np.minimum(smooth[i], smooth[j]), np.maximum(smooth[i], smooth[j])
            jaccard[i, j] = 1 - low.sum() / high.sum()
    return (1 - kept) * jaccard + kept * plain


@pytest.mark.parametrize(("k1", "k2", "kept"), [(8, 3, 0.3), (5, 1, 0.0), (20, 6, 0.5), (3, 2, 1)])
def test_reciprocal_distances_are_those_of_the_paper(k1, k2, kept):
    vectors, _ = clustered()
    found = reciprocal_distances(vectors, k1, smoothed=k2, kept=kept)
    assert np.allclose(found.numpy(), transcribe_reciprocal(vectors, k1, k2, kept), atol=1e-9)


def test_the_expanded_query_is_the_weighted_sum():
    vectors, _ = clustered(8)
    query, near = vectors[0].numpy(), vectors[1:5].numpy()
    expected = query + sum(max(0.0, float(n @ query)) ** 3 * n for n in near)
    expected /= np.linalg.norm(expected)
    assert np.allclose(expand_query(vectors[0], vectors[1:5]).numpy(), expected)


@pytest.mark.parametrize("by", ["expansion", "reciprocal"])
def test_both_lift_the_class_of_the_query(by):
    vectors, labels = clustered(60, noise=1.1, seed=3)
    hits = {"before": 0, "after": 0}
    for query in range(len(vectors)):
        others = torch.arange(len(vectors)) != query
        near = (vectors[others] @ vectors[query]).argsort(descending=True)
        candidates, classes = vectors[others][near], labels[others][near]
        score = score_by_neighbors(vectors[query], candidates, by, 10)
        again = classes[score.argsort(descending=True, stable=True)]
        hits["before"] += int((classes[:10] == labels[query]).sum())
        hits["after"] += int((again[:10] == labels[query]).sum())
    assert hits["after"] > hits["before"]


def test_few_candidates_are_enough():
    vectors, _ = clustered(4)
    for by in ("expansion", "reciprocal"):
        for count in range(1, 4):
            score = score_by_neighbors(vectors[0], vectors[1 : 1 + count], by)
            assert score.shape == (count,) and bool(score.isfinite().all())


def test_patches_are_not_descriptors():
    vectors, _ = clustered(4)
    with pytest.raises(ModelError, match="expansion or reciprocal"):
        score_by_neighbors(vectors[0], vectors[1:], "patches")


@pytest.mark.parametrize("by", ["expansion", "reciprocal"])
def test_the_nearest_image_stays_first(by):
    """Neighbors find the group; the nearest of it is known by its descriptor."""
    vectors, _ = clustered(noise=1.5)
    moved = 0
    for query in range(len(vectors)):
        similarity = vectors @ vectors[query]
        similarity[query] = -1
        near = vectors[similarity.argsort(descending=True)[:20]]
        kept = score_by_neighbors(vectors[query], near, by)
        free = score_by_neighbors(vectors[query], near, by, keep_first=False)
        assert int(kept.argsort(descending=True, stable=True)[0]) == 0
        assert torch.equal(kept[1:], free[1:])
        moved += int(free.argmax() != 0)
    assert moved  # else this says nothing
