import pytest
import timm
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.pruning.modules import Predictors
from clearvit.pruning.prune import prune
from clearvit.pruning.pruning_plan import make_plan
from clearvit.testing import planted
from tests.helpers.made_pruned import prune_with


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
    assert make_plan(depth).stages == stages


@given(st.integers(1, 2000), st.floats(0.01, 1), st.integers(2, 30))
@settings(deadline=None, max_examples=50)
def test_counts_are_truncated_powers_and_never_nothing(patches, keep, depth):
    made = make_plan(depth, keep=keep)
    expected = [max(1, int(patches * keep ** (s + 1))) for s in range(len(made.stages))]
    assert made.counts(patches) == expected
    assert expected == sorted(expected, reverse=True)


def test_counts_of_the_paper():
    assert make_plan(12).counts(196) == [137, 96, 67]
    assert make_plan(12, keep=[0.7, 0.49, 0.343]).counts(196) == [137, 96, 67]
    assert make_plan(12, keep=[0.5], stages=[6]).counts(256) == [128]
    assert make_plan(12, keep=[0.9, 0.5]).stages == (4, 8)


@pytest.mark.parametrize("keep", [0, -0.1, 1.2, float("nan"), [0.5, 0, 0.1]])
def test_a_fraction_outside_is_refused(keep):
    with pytest.raises(ModelError, match=r"keep is .*\(0, 1\]"):
        make_plan(12, keep=keep)


@pytest.mark.parametrize("stages", [[0], [12], [-1], [6, 3], [3, 3], [], [1.5]])
def test_stages_beyond_the_depth_are_refused(stages):
    with pytest.raises(ModelError, match="block numbers from 1 to 11"):
        make_plan(12, stages=stages)


def test_other_plans_are_refused():
    with pytest.raises(ModelError, match="one for each"):
        make_plan(12, keep=[0.5, 0.4], stages=[3, 6, 9])
    with pytest.raises(ModelError, match="must not grow"):
        make_plan(12, keep=[0.5, 0.6, 0.2])
    with pytest.raises(ModelError, match="one block"):
        make_plan(1)


def test_backbones_that_cannot_be_pruned_are_refused(tiny):
    with pytest.raises(ModelError, match="grid-only"):
        prune(load(timm.create_model("resnet18")))
    with pytest.raises(ModelError, match="made of"):
        prune(planted(tiny, "high-norm").backbone)
    with pytest.raises(ModelError, match="3 predictors of 24 channels do not fit"):
        prune_with(tiny, Predictors(24, 3))
    with pytest.raises(ModelError, match="2 predictors of 32 channels do not fit"):
        prune_with(tiny, Predictors(32, 2))


def test_cv_prune_is_the_function(tiny):
    assert clearvit.prune is prune and clearvit.prune(tiny, keep=0.5).plan.keep == (0.5, 0.25)
