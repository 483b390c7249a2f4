import pytest
import timm
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.prune import macs
from clearvit.prune.predictor import Predictors
from clearvit.prune.prune import prune
from tests.conftest import tiny_network


@pytest.mark.parametrize(
    ("name", "dense", "with_predictors", "without"),
    [
        ("deit_tiny_patch16_224", 1.254, 0.801, None),
        ("deit_small_patch16_224", 4.599, 2.981, 2.88),
    ],
)
def test_macs_are_those_of_the_closed_form(name, dense, with_predictors, without):
    backbone = load(timm.create_model(name))
    learned = prune(backbone, keep=0.7, scorer=Predictors(backbone.width, 3), fill="mean")
    assert macs(backbone).total / 1e9 == pytest.approx(dense, abs=6e-4)
    assert macs(learned).total / 1e9 == pytest.approx(with_predictors, abs=6e-4)
    assert macs(learned).dense == macs(backbone).total
    if without:
        assert macs(learned).network / 1e9 == pytest.approx(without, abs=6e-3)


@pytest.mark.parametrize("arguments", [{}, {"class_token": False, "global_pool": "avg"}])
@pytest.mark.parametrize("scorer", ["class", "merge", "value-norm", "random", "predictor"])
def test_macs_are_those_torch_counts(scorer, arguments):
    backbone = load(tiny_network(depth=4, embed_dim=48, **arguments))
    chosen = Predictors(48, 3) if scorer == "predictor" else scorer
    pruned = prune(backbone, keep=0.7, scorer=chosen)
    pixels = torch.randn(1, 3, 64, 40)
    # torch does not count its fused attention on a CPU
    unfused = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), unfused, FlopCounterMode(display=False) as counter:
        pruned.forward(pixels)
    assert macs(pruned, (64, 40)).total == counter.get_total_flops() / 2


def test_an_adaptive_budget_is_counted_from_what_it_kept():
    backbone = load(tiny_network(depth=4))
    pruned = prune(backbone, keep=0.6, budget="adaptive")
    tokens = pruned.tokens(torch.randn(3, 3, 64, 64))
    reached = macs(pruned, tokens=tokens)
    assert reached.network < reached.dense == macs(backbone, 64).total
    with pytest.raises(ModelError, match="tokens=tokens"):
        macs(pruned)
    fixed = prune(backbone, keep=0.6)
    assert macs(fixed, 64) == macs(fixed, tokens=fixed.tokens(torch.randn(2, 3, 64, 64)))
    assert "GMACs" in str(reached)
    with pytest.raises(ModelError, match="grid-only"):
        macs(load(timm.create_model("resnet18")))
