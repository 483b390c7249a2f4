import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ModelError
from clearvit.retrieval.patch_weights import (
    class_attention,
    cross_correlation,
    cross_weights,
    discard_smallest,
    has_positive_correlation,
    multiply_blocks,
    official_rollout,
    remove_artifacts,
    rollout,
    uniform_weights,
)
from tests.helpers import GOLDEN


@pytest.fixture(scope="module")
def rollouts():
    return np.load(GOLDEN / "rollout.npz")


@pytest.fixture(scope="module")
def features():
    arrays = np.load(GOLDEN / "transport_features.npz")
    return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


@pytest.mark.parametrize("number", range(3))
def test_rollout_is_equation_7_in_every_reading(rollouts, number):
    attention = torch.from_numpy(rollouts[f"{number}.attention"]).double()
    first_blocks = {"raw": "raw", "normalized": "normalised"}
    for fuse, norm, first in itertools.product(["mean", "min"], ["l1", "l2"], first_blocks):
        found = rollout(attention, fuse=fuse, norm=norm, first=first)
        expected = rollouts[f"{number}.eq7_{fuse}_{norm}_{first_blocks[first]}_no_cls_mu"]
        np.testing.assert_allclose(found, expected, atol=1e-12)
    paper = rollouts[f"{number}.eq7_mean_l2_raw_no_cls_mu"]
    np.testing.assert_allclose(rollout(attention), paper, atol=1e-12)


@pytest.mark.parametrize("number", range(3))
def test_rollout_is_that_of_the_published_code_on_one_image(rollouts, number):
    attention = torch.from_numpy(rollouts[f"{number}.attention"])
    found = official_rollout(attention)
    np.testing.assert_allclose(found, rollouts[f"{number}.official_mu_batch1"], atol=1e-6)


def test_rollout_of_an_image_does_not_depend_on_its_batch(rollouts):
    batch = torch.stack([torch.from_numpy(rollouts[f"{i}.attention"]) for i in range(3)])
    together = official_rollout(batch)
    for image, found in zip(batch, together, strict=True):
        assert torch.allclose(official_rollout(image), found, atol=1e-7)


def pool_keys_and_queries(maps):
    """Average attention between 8 x 8 patches to 4 x 4, as the published code does for CvT."""
    keys = F.adaptive_avg_pool2d(maps.unflatten(-1, (8, 8)), (4, 4)).flatten(-2)
    queries = F.adaptive_avg_pool2d(keys.transpose(-1, -2).unflatten(-1, (8, 8)), (4, 4))
    return queries.flatten(-2).transpose(-1, -2)


def test_rollout_through_stages_of_different_grids(rollouts):
    maps = []
    for stage in ("stage0", "stage1"):
        attention = torch.from_numpy(rollouts[f"cvt.{stage}"]).double()
        smaller = discard_smallest(attention.amin(-3), 0.1)
        maps.append(pool_keys_and_queries(smaller))
    for attention in torch.from_numpy(rollouts["cvt.stage2"]).double():
        maps.append(discard_smallest(attention.amin(-3), 0.1)[1:, 1:])
    found = multiply_blocks(maps, norm="l1", first="normalized")
    np.testing.assert_allclose(found, rollouts["cvt.independent_joint"], atol=1e-12)
    np.testing.assert_allclose(found.mean(0), rollouts["cvt.official_mu_batch1"], atol=1e-6)


def test_registers_get_no_weight():
    attention = torch.rand(2, 3, 4, 21, 21).softmax(-1)
    assert rollout(attention, prefix=5).shape == (2, 16)
    found = class_attention(attention[:, -1], prefix=5)
    expected = attention[:, -1].mean(1)[:, 0, 5:]
    assert torch.allclose(found, expected / expected.sum(-1, keepdim=True), atol=1e-6)
    for weights in (rollout(attention, prefix=5), found):
        assert torch.allclose(weights.sum(-1), torch.ones(2), atol=1e-6)


def test_cross_correlation_is_dimls_with_a_fallback(features):
    exact = {key: value.double() for key, value in features.items()}
    query = cross_correlation(exact["candidate_global"], exact["query"])
    candidate = cross_correlation(exact["query_global"], exact["candidates"])
    np.testing.assert_allclose(query, exact["cc_u_query"], atol=1e-9)
    np.testing.assert_allclose(candidate, exact["cc_v_candidate"], atol=1e-9)
    agrees = torch.stack(
        [
            has_positive_correlation(exact["candidate_global"], exact["query"]),
            has_positive_correlation(exact["query_global"], exact["candidates"]),
        ],
        dim=1,
    )
    assert (~agrees).tolist() == features["degenerate"].bool().tolist()
    assert (~agrees).any()


@pytest.mark.parametrize("rule", ["correlation", "inverse", "minus", "softmax"])
def test_cross_weights_are_the_published_rules(features, rule):
    """Against the formulas, in numpy, image by image."""
    patches, other = features["candidates"].double()[0], features["query_global"].double()
    cosines = patches.numpy() @ other.numpy()
    raw = {
        "correlation": np.maximum(cosines, 0),
        "inverse": np.exp(-np.maximum(cosines, 0) / 0.1),
        "minus": 1 - np.maximum(cosines, 0),
        "softmax": np.exp(cosines),
    }[rule]
    expected = raw / raw.sum() if raw.sum() else np.full_like(raw, 1 / len(raw))
    np.testing.assert_allclose(cross_weights(other, patches, rule), expected, atol=1e-9)


def test_artifacts_get_no_weight_unless_nothing_else_is_left():
    flags = torch.zeros(2, 16, dtype=torch.bool)
    flags[0, [3, 9]] = True
    weights = F.normalize(torch.rand(2, 16), p=1, dim=-1)
    clean = remove_artifacts(weights, flags)
    assert (clean[0, [3, 9]] == 0).all()
    assert torch.allclose(clean.sum(-1), torch.ones(2))
    assert torch.allclose(clean[0, :3] / clean[0, 4], weights[0, :3] / weights[0, 4])
    assert torch.allclose(clean[1], weights[1])
    everything = torch.ones(2, 16, dtype=torch.bool)
    assert torch.allclose(remove_artifacts(weights, everything), weights)


def test_uniform_and_wrong_names():
    assert torch.allclose(uniform_weights(torch.rand(2, 5, 3)), torch.full((2, 5), 0.2))
    attention = torch.rand(2, 3, 9, 9)
    for option in ({"fuse": "maen"}, {"norm": "l3"}, {"first": "row"}):
        with pytest.raises(ModelError, match="use "):
            rollout(attention, **option)
    with pytest.raises(ModelError, match="needs a class token"):
        class_attention(attention, prefix=0)
