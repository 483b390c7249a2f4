"""The moving average of the weights."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearvit.training.ema import Ema


def walk(decay, values):
    """Give a weight one value after another; returns the module and its average."""
    module = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(module.weight, values[0])
    ema = Ema(module, decay)
    for step, value in enumerate(values[1:], 1):
        nn.init.constant_(module.weight, value)
        ema.update(step)
    return module, ema


@given(st.floats(0.01, 0.999), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_it_is_the_recurrence_and_stays_between_the_values(decay, values):
    mean = values[0]
    for step, value in enumerate(values[1:], 1):
        kept = min(decay, (1 + step) / (10 + step))
        mean = kept * mean + (1 - kept) * value
    found = float(walk(decay, values)[1].weights["weight"])
    assert abs(found - mean) <= 1e-9 * max(map(abs, values), default=1.0)
    assert min(values) - 1e-9 <= found <= max(values) + 1e-9


def test_it_stands_in_for_the_weights_and_leaves_them_as_they_were():
    module, ema = walk(0.5, [0.0, 1.0, 2.0])
    with ema.applied():
        inside = module.weight.detach().clone()
    assert torch.equal(inside, ema.weights["weight"]) and not torch.equal(inside, module.weight)
    assert float(module.weight) == 2.0


def test_without_decay_the_last_weights_stand_for_themselves():
    module, ema = walk(0.0, [0.0, 1.0, 2.0])
    with ema.applied():
        assert float(module.weight) == 2.0
    assert not ema.weights


def test_frozen_weights_have_no_average():
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    assert set(Ema(module, 0.9).weights) == {"weight"}
