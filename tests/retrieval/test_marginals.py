import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ModelError
from clearvit.retrieval.marginals import (
    class_attention,
    class_rollout,
    cross_correlation,
    discarded,
    flag_artifacts,
    fused,
    joint,
    pooled_attention,
    positive_cross_correlation,
    rollout,
    uniform,
    without_artifacts,
)
from clearvit.retrieval.official import official_weights

GOLDEN = Path(__file__).parents[1] / "golden"
OFFICIAL = {"fuse": "min", "norm": "l1", "first": "normalised", "discard": 0.1}


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
    readings = itertools.product(["mean", "min", "max"], ["l1", "l2"], ["raw", "normalised"])
    for fuse, norm, first in readings:
        for through, name in ((False, "no_cls"), (True, "with_cls")):
            found = rollout(attention, fuse=fuse, norm=norm, first=first, through_prefix=through)
            expected = rollouts[f"{number}.eq7_{fuse}_{norm}_{first}_{name}_mu"]
            np.testing.assert_allclose(found, expected, atol=1e-12)
    paper = rollouts[f"{number}.eq7_mean_l2_raw_no_cls_mu"]
    np.testing.assert_allclose(rollout(attention), paper, atol=1e-12)
    expected = rollouts[f"{number}.abnar_zuidema_cls_row"]
    np.testing.assert_allclose(class_rollout(attention), expected, atol=1e-12)


@pytest.mark.parametrize("number", range(3))
def test_rollout_is_that_of_the_published_code_on_one_image(rollouts, number):
    attention = torch.from_numpy(rollouts[f"{number}.attention"])
    found = rollout(attention, **OFFICIAL)
    np.testing.assert_allclose(found, rollouts[f"{number}.official_mu_batch1"], atol=1e-6)


def test_rollout_of_an_image_does_not_depend_on_its_batch(rollouts):
    batch = torch.stack([torch.from_numpy(rollouts[f"{i}.attention"]) for i in range(3)])
    together = rollout(batch, **OFFICIAL)
    for image, found in zip(batch, together, strict=True):
        assert torch.allclose(rollout(image, **OFFICIAL), found, atol=1e-7)


def test_rollout_through_stages_of_different_grids(rollouts):
    maps = []
    for stage in ("stage0", "stage1"):
        attention = torch.from_numpy(rollouts[f"cvt.{stage}"]).double()
        smaller = discarded(fused(attention, "min"), 0.1)
        maps.append(pooled_attention(smaller, (8, 8), (4, 4)))
    for attention in torch.from_numpy(rollouts["cvt.stage2"]).double():
        maps.append(discarded(fused(attention, "min"), 0.1)[1:, 1:])
    found = joint(maps, norm="l1", first="normalised")
    np.testing.assert_allclose(found, rollouts["cvt.independent_joint"], atol=1e-12)
    np.testing.assert_allclose(found.mean(0), rollouts["cvt.official_mu_batch1"], atol=1e-6)


def test_registers_get_no_weight():
    attention = torch.rand(2, 3, 4, 21, 21).softmax(-1)
    assert rollout(attention, prefix=5).shape == (2, 16)
    assert class_rollout(attention, prefix=5).shape == (2, 16)
    found = class_attention(attention[:, -1], prefix=5)
    expected = attention[:, -1].mean(1)[:, 0, 5:]
    assert torch.allclose(found, expected / expected.sum(-1, keepdim=True), atol=1e-6)
    for weights in (rollout(attention, prefix=5), found):
        assert torch.allclose(weights.sum(-1), torch.ones(2), atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("inverse", "inverse"), ("minus", "minus"), ("softmax", "soft")]
)
def test_cross_options_are_those_of_the_published_code(features, ours, theirs):
    candidate = cross_correlation(features["query_global"], features["candidates"], rule=ours)
    query = cross_correlation(features["candidate_global"], features["query"], rule=ours)
    for found, name in ((candidate, "u_candidate"), (query, "v_query")):
        golden = features[f"official_{theirs}_{name}"]
        np.testing.assert_allclose(official_weights(found), golden, atol=2e-6)


def test_cross_correlation_is_dimls_with_a_fallback(features):
    exact = {key: value.double() for key, value in features.items()}
    query = cross_correlation(exact["candidate_global"], exact["query"])
    candidate = cross_correlation(exact["query_global"], exact["candidates"])
    np.testing.assert_allclose(query, exact["cc_u_query"], atol=1e-9)
    np.testing.assert_allclose(candidate, exact["cc_v_candidate"], atol=1e-9)
    agrees = torch.stack(
        [
            positive_cross_correlation(exact["candidate_global"], exact["query"]),
            positive_cross_correlation(exact["query_global"], exact["candidates"]),
        ],
        dim=1,
    )
    assert (~agrees).tolist() == features["degenerate"].bool().tolist()
    assert (~agrees).any()


def test_artifacts_get_no_weight_unless_nothing_else_is_left():
    norms = torch.rand(2, 16) + 1
    norms[0, [3, 9]] = 8.0
    flags = flag_artifacts(norms, cutoff=2.5)
    assert flags.nonzero().tolist() == [[0, 3], [0, 9]]
    marginal = F.normalize(torch.rand(2, 16), p=1, dim=-1)
    clean = without_artifacts(marginal, flags)
    assert (clean[0, [3, 9]] == 0).all()
    assert torch.allclose(clean.sum(-1), torch.ones(2))
    assert torch.allclose(clean[0, :3] / clean[0, 4], marginal[0, :3] / marginal[0, 4])
    assert torch.allclose(clean[1], marginal[1])
    everything = torch.ones(2, 16, dtype=torch.bool)
    assert torch.allclose(without_artifacts(marginal, everything), marginal)


def test_uniform_and_wrong_names():
    assert torch.allclose(uniform(torch.rand(2, 5, 3)), torch.full((2, 5), 0.2))
    attention = torch.rand(2, 3, 9, 9)
    for option in ({"fuse": "maen"}, {"norm": "l3"}, {"first": "row"}):
        with pytest.raises(ModelError, match="use "):
            rollout(attention, **option)
    with pytest.raises(ModelError, match="Closest: softmax"):
        cross_correlation(torch.rand(3), torch.rand(5, 3), rule="softmx")
    with pytest.raises(ModelError, match="needs a class token"):
        class_attention(attention, prefix=0)
