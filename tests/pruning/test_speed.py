"""keep="2x": a search with a clock of its own, so nothing here depends on the machine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError, OptionError
from clearvit.pruning import speed
from clearvit.pruning.config import speed_target
from clearvit.pruning.cost import macs
from clearvit.pruning.prune import prune
from clearvit.pruning.speed import bisect_keep


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, *seconds):
        left = list(seconds)
        return lambda: setattr(self, "now", self.now + (left.pop(0) if len(left) > 1 else left[0]))


@given(st.floats(1.05, 9), st.floats(0.02, 0.5), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_the_fraction_reaches_the_target_and_the_next_step_does_not(target, least, steps):
    asked = []

    def ratio(fraction):
        asked.append(fraction)
        return 1 / fraction

    if 1 / least < target:
        with pytest.raises(ModelError, match="cannot be reached: with the fewest patches"):
            bisect_keep(ratio, target, least=least, steps=steps)
        return
    fraction, reached = bisect_keep(ratio, target, least=least, steps=steps)
    assert reached == 1 / fraction >= target
    assert fraction + (1 - least) / 2**steps >= 1 / target - 1e-9
    assert len(asked) == steps + 1 and all(least <= s < 1 for s in asked)


def test_a_noisy_machine_still_gets_a_fraction_that_was_measured_fast_enough():
    rng = torch.Generator().manual_seed(0)
    measured = {}

    def ratio(fraction):
        measured[fraction] = (1 / fraction) * (0.8 + 0.4 * float(torch.rand(1, generator=rng)))
        return measured[fraction]

    fraction, reached = bisect_keep(ratio, 1.5, least=0.1)
    assert measured[fraction] == reached >= 1.5


@pytest.mark.parametrize(("text", "target"), [("2x", 2.0), ("1.5x", 1.5), (" 3x ", 3.0)])
def test_speeds_are_read(text, target):
    assert speed_target(text) == target


@pytest.mark.parametrize("text", ["2", "x", "fast", "1x", "0.5x", "-2x", "2 x", "infx", ""])
def test_other_words_are_refused(text, tiny):
    with pytest.raises(OptionError, match=r'a speed above 1 such as "1.5x"'):
        prune(tiny, keep=text)


def test_the_call_finds_the_fraction_by_time(tiny, monkeypatch):
    """Time is MACs here: a pass takes as long as it has to compute."""
    clock = Clock()
    kinds = []

    def forward(self, pixels, **options):
        kinds.append(type(self).__name__)
        clock.now += macs(self, (64, 96)).total
        return right[type(self)](self, pixels, **options)

    backbone = tiny.resized((64, 96))
    right = {kind: kind.forward for kind in (type(tiny), type(prune(tiny)))}
    for kind in right:
        monkeypatch.setattr(kind, "forward", forward)
    monkeypatch.setattr(
        "clearvit.pruning.prune.find_keep",
        lambda *a, **o: speed.find_keep(*a, **o, clock=clock),
    )
    pruned = prune(backbone, keep="1.3x", stages=[1, 2], scorer="random")
    found = pruned.speed
    assert found.keep == pruned.plan.keep[0] and pruned.plan.keep[1] == pytest.approx(found.keep**2)
    assert found.target == 1.3 <= found.ratio and found.size == (64, 96)
    assert macs(pruned, (64, 96)).gain == pytest.approx(found.ratio)
    assert macs(prune(backbone, keep=found.keep + 0.02, stages=[1, 2], scorer="random")).gain < 1.3
    assert "as fast as dense (wanted 1.3x), 64x96 px, batch 1" in str(found)
    assert kinds[:4] == ["VitBackbone", "PrunedBackbone", "PrunedBackbone", "VitBackbone"]
    with pytest.raises(ModelError, match="50x cannot be reached"):
        prune(backbone, keep="50x")
    assert prune(backbone, keep=0.5).speed is None
