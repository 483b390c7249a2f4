import pytest
import timm
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.pruning import macs
from clearvit.pruning.modules import Predictors
from clearvit.pruning.prune import prune
from tests.conftest import tiny_network
from tests.helpers.made_pruned import prune_with


@pytest.mark.parametrize(
    ("name", "dense", "with_predictors", "without"),
    [
        ("deit_tiny_patch16_224", 1.254, 0.801, None),
        ("deit_small_patch16_224", 4.599, 2.981, 2.88),
    ],
)
def test_macs_are_those_of_the_closed_form(name, dense, with_predictors, without):
    backbone = load(timm.create_model(name))
    learned = prune_with(backbone, Predictors(backbone.width, 3), keep=0.7, fill="mean")
    assert macs(backbone).total / 1e9 == pytest.approx(dense, abs=6e-4)
    assert macs(learned).total / 1e9 == pytest.approx(with_predictors, abs=6e-4)
    assert macs(learned).dense == macs(backbone).total
    if without:
        assert macs(learned).network / 1e9 == pytest.approx(without, abs=6e-3)


@pytest.mark.parametrize("arguments", [{}, {"class_token": False, "global_pool": "avg"}])
@pytest.mark.parametrize("scorer", ["class", "fuse", "merge", "random", "predictor"])
def test_macs_are_those_torch_counts(scorer, arguments):
    backbone = load(tiny_network(depth=4, embed_dim=48, **arguments))
    if scorer == "predictor":
        pruned = prune_with(backbone, Predictors(48, 3), keep=0.7)
    else:
        pruned = prune(backbone, keep=0.7, scorer=scorer)
    pixels = torch.randn(1, 3, 64, 40)
    # torch does not count its fused attention on a CPU
    unfused = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), unfused, FlopCounterMode(display=False) as counter:
        pruned.forward(pixels)
    assert macs(pruned, (64, 40)).total == counter.get_total_flops() / 2


def test_a_count_reads_as_text_and_needs_a_vit():
    assert "GMACs" in str(macs(prune(load(tiny_network(depth=4)), keep=0.6), 64))
    with pytest.raises(ModelError, match="grid-only"):
        macs(load(timm.create_model("resnet18")))
