import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit.prune
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.prune.budgets import needed, planned
from clearvit.prune.predictor import Predictors
from clearvit.prune.prune import prune
from clearvit.testing import planted


def plan(depth=12, **options):
    defaults = {"keep": 0.7, "stages": None, "scorer": "class", "fill": "similar"}
    return planned(depth, **(defaults | {"budget": "fixed"} | options))


@pytest.mark.parametrize(
    ("depth", "stages"),
    [
        (12, (3, 6, 9)),
        (16, (4, 8, 12)),
        (20, (5, 10, 15)),
        (24, (6, 12, 18)),
        (3, (1, 2)),
        (2, (1,)),
    ],
)
def test_default_stages_are_those_of_dynamicvit(depth, stages):
    assert plan(depth).stages == stages


@given(st.integers(1, 2000), st.floats(0.01, 1), st.integers(2, 30))
@settings(deadline=None, max_examples=50)
def test_counts_are_truncated_powers_and_never_nothing(patches, keep, depth):
    made = plan(depth, keep=keep)
    expected = [max(1, int(patches * keep ** (s + 1))) for s in range(len(made.stages))]
    assert made.counts(patches) == expected
    assert expected == sorted(expected, reverse=True)


def test_counts_of_the_paper():
    assert plan().counts(196) == [137, 96, 67]
    assert plan(keep=[0.7, 0.49, 0.343]).counts(196) == [137, 96, 67]
    assert plan(keep=[0.5], stages=[6]).counts(256) == [128]
    assert plan(keep=[0.9, 0.5]).stages == (4, 8)


@given(st.integers(1, 30), st.floats(0.01, 1), st.integers(1, 8), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_adaptive_counts_hold_the_share(length, share, step, seed):
    scores = torch.rand(4, length, generator=torch.Generator().manual_seed(seed))
    counts = needed(scores, share, step)
    for row, count in zip(scores.double().numpy(), counts.tolist(), strict=True):
        ranked = np.sort(row)[::-1]
        exact = next(
            k for k in range(1, length + 1) if ranked[:k].sum() >= share * row.sum() - 1e-9
        )
        assert count == min(length, -(-exact // step) * step)


def test_scores_of_nothing_still_keep_a_patch():
    assert needed(torch.zeros(2, 9), 0.7, 1).tolist() == [1, 1]


@pytest.mark.parametrize("keep", [0, -0.1, 1.2, float("nan"), "2x", None, [0.5, 0, 0.1], [[0.5]]])
def test_a_share_outside_is_refused(keep):
    with pytest.raises(ModelError, match=r"keep is .*\(0, 1\]"):
        plan(keep=keep)


@pytest.mark.parametrize("stages", [[0], [12], [-1], [6, 3], [3, 3], [], [1.5]])
def test_stages_beyond_the_depth_are_refused(stages):
    with pytest.raises(ModelError, match="block numbers from 1 to 11"):
        plan(stages=stages)


def test_other_words_are_refused():
    with pytest.raises(ModelError, match="one for each"):
        plan(keep=[0.5, 0.4], stages=[3, 6, 9])
    with pytest.raises(ModelError, match="must not grow"):
        plan(keep=[0.5, 0.6, 0.2])
    with pytest.raises(ModelError, match="Closest: value-norm"):
        plan(scorer="value_norm")
    with pytest.raises(ModelError, match="Closest: similar"):
        plan(fill="simlar")
    with pytest.raises(ModelError, match="fixed, adaptive"):
        plan(budget="2x")
    with pytest.raises(ModelError, match="merging has no score"):
        plan(scorer="merge", budget="adaptive")
    with pytest.raises(ModelError, match="one block"):
        plan(1)


def test_backbones_that_cannot_be_pruned_are_refused(tiny):
    with pytest.raises(ModelError, match="grid-only"):
        prune(load(timm.create_model("resnet18")))
    with pytest.raises(ModelError, match="made of"):
        prune(planted(tiny, "high-norm").backbone)
    with pytest.raises(ModelError, match="import_dynamicvit"):
        prune(tiny, scorer="predictor")
    with pytest.raises(ModelError, match="3 predictors of 24 channels do not fit"):
        prune(tiny, scorer=Predictors(24, 3))
    with pytest.raises(ModelError, match="2 predictors of 32 channels do not fit"):
        prune(tiny, scorer=Predictors(32, 2))


def test_the_room_is_a_verb(tiny):
    assert clearvit.prune(tiny, keep=0.5).plan.keep == (0.5, 0.25)
    assert clearvit.prune.import_dynamicvit.__name__ == "import_dynamicvit"
