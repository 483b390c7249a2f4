"""A patch that holds n draws the attention of the square root of n equal ones."""

import dataclasses
import json

import pytest
import torch

from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruned_files import MARKER, PROPORTIONAL
from clearvit.pruning.reduction import KeptTokens
from tests.helpers.made_pruned import BACKBONES


def test_one_that_holds_nine_acts_on_the_others_as_three_equal_ones(tiny):
    torch.manual_seed(0)
    prefix = len(tiny.prefix_names)
    first, patches = torch.randn(2, prefix, tiny.width), torch.randn(2, 4, tiny.width)
    dense = torch.cat([first, patches, patches[:, 1:2], patches[:, 1:2]], 1)  # patch 1 three times
    sizes = torch.tensor([[1.0, 9.0, 1.0, 1.0]] * 2)
    positions = torch.arange(4).expand(2, -1)
    bias = KeptTokens(positions, positions, sizes).attention_bias(prefix)
    with torch.no_grad():
        whole, short = dense, torch.cat([first, patches], 1)
        for index in range(tiny.depth):
            whole = tiny.run_block(index, whole, None)
            short = tiny.run_block(index, short, None, bias)
    assert torch.allclose(short, whole[:, : prefix + 4], atol=1e-5)


def test_sizes_of_one_add_nothing():
    bias = KeptTokens.all_of(3, 5, torch.device("cpu")).attention_bias(2)
    assert bias.shape == (3, 1, 1, 7) and not bias.any()


@pytest.mark.parametrize("name", BACKBONES)
def test_only_merging_weighs_and_captured_attention_is_what_the_network_used(name):
    backbone = BACKBONES[name]()
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    merged = prune(backbone, keep=0.5, scorer="merge")
    once = PrunedBackbone(merged.dense, dataclasses.replace(merged.plan, proportional=False))
    with torch.no_grad():
        one, other = (m.forward(pixels, capture="attention") for m in (merged, once))
    assert not torch.allclose(one.patches, other.patches, atol=1e-4)
    last = backbone.depth - 1
    assert not torch.allclose(one.attention[last], other.attention[last], atol=1e-4)
    for tokens in (one, other):
        sums = tokens.attention[last].sum(-1)
        assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
    dropped = prune(backbone, keep=0.5, scorer="random")
    plain = dataclasses.replace(dropped.plan, proportional=False)
    with torch.no_grad():
        pair = [m.forward(pixels).patches for m in (dropped, PrunedBackbone(backbone, plain))]
    assert torch.equal(*pair)


def test_a_model_saved_before_does_without_and_keeps_doing_so(tiny, tmp_path):
    folder = prune(tiny, keep=0.5, scorer="merge").save(tmp_path / "pruned")
    assert load(f"dir:{folder}").plan.proportional
    content = json.loads((folder / MARKER).read_text())
    content.pop(PROPORTIONAL)
    (folder / MARKER).write_text(json.dumps(content))
    older = load(f"dir:{folder}")
    assert not older.plan.proportional and not older.with_keep(0.7).plan.proportional
    (folder / MARKER).write_text(json.dumps({**content, PROPORTIONAL: "yes"}))
    with pytest.raises(ModelError, match=PROPORTIONAL):
        load(f"dir:{folder}")
