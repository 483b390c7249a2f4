"""The verdict in words: what is said, and when it is advised to cure."""

import pytest
import torch

from clearvit.artifacts.equivariance import NOTICEABLE, Equivariance, level_of
from clearvit.artifacts.position import PositionStats
from clearvit.artifacts.verdict import MEANING, TITLES, count_of, judge, next_command

NOWHERE = PositionStats(torch.zeros(16), torch.zeros(16), 8)


def moved(ratio, level=NOTICEABLE):
    return Equivariance((ratio,) * 3, (0.1,) * 3, (1.0,) * 3, 1, level)


@pytest.mark.parametrize(
    ("step", "cells", "level"), [(4, 37, 0.108), (2, 24, 0.1), (2, 16, 0.125), (1, 4, 0.25)]
)
def test_the_level_grows_where_a_grid_cannot_be_shifted_by_a_tenth(step, cells, level):
    assert level_of(step, cells) == pytest.approx(level, abs=1e-3)


def test_a_small_change_with_a_shift_is_no_finding():
    assert judge([], NOWHERE, moved(0.09)) == ()
    (finding,) = judge([], NOWHERE, moved(0.11))
    assert finding.kind == "non-equivariant" and "11 %" in finding.evidence
    assert finding.title == "Features change with a shift"  # true beside artifact tokens too
    assert judge([], NOWHERE, moved(0.11, level=0.125)) == ()
    assert judge([], NOWHERE, None) == ()


def test_next_commands_are_complete_and_quoted():
    line = next_command("high-norm", "timm:a b@c.pth", "my photos", (224, 224))
    assert line == "clearvit cure 'timm:a b@c.pth' 'my photos' --size 224 --out cured/"
    assert "--size 224x336" in next_command("none", "demo", "x", (224, 336))
    assert next_command("none", "demo", "x").startswith("clearvit tokens demo x")


def test_every_verdict_has_a_title_and_a_meaning():
    assert set(TITLES) == set(MEANING)
    assert (count_of(1, "image"), count_of(2, "patch", "patches")) == ("1 image", "2 patches")
