"""Merging with any scorer, and a trained fill."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.pruning.cost import macs
from clearvit.pruning.modules import LearnedFill, Predictors
from clearvit.pruning.prune import prune
from clearvit.pruning.reduction import KeptTokens, last_values, reduce_tokens
from clearvit.pruning.selection import Choice, select_top
from tests.conftest import tiny_network
from tests.helpers.made_pruned import fill_of, prune_with


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(depth=4, reg_tokens=2))


def test_class_attention_with_merging_is_fuse(backbone):
    pixels = torch.randn(2, 3, 48, 32)
    ours = prune(backbone, keep=0.6, scorer="class", merge=True).tokens(pixels)
    fused = prune(backbone, keep=0.6, scorer="fuse").tokens(pixels)
    assert torch.equal(ours.patches, fused.patches) and torch.equal(ours.prefix, fused.prefix)
    dropped = prune(backbone, keep=0.6, scorer="class", merge=False).tokens(pixels)
    assert not torch.allclose(dropped.prefix, fused.prefix, atol=1e-4)


@pytest.mark.parametrize("scorer", ["class", "fuse", "merge"])
def test_an_untrained_fill_is_similar(backbone, scorer):
    pixels = torch.randn(2, 3, 48, 32)
    untrained = prune_with(backbone, keep=0.5, scorer=scorer, fill=LearnedFill(backbone.width))
    plain = prune(backbone, keep=0.5, scorer=scorer)
    with torch.no_grad():
        assert torch.equal(untrained.forward(pixels).patches, plain.forward(pixels).patches)


def test_where_all_are_kept_nothing_is_restored(backbone):
    pixels = torch.randn(2, 3, 32, 32)
    pruned = prune_with(backbone, keep=1.0, fill=fill_of("learned", backbone.width))
    assert torch.equal(pruned.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_earlier_blocks_show_the_assigned_patch(backbone):
    pixels = torch.randn(1, 3, 48, 48)
    pruned = prune_with(backbone, keep=0.5, fill=fill_of("learned", backbone.width))
    plain = prune(backbone, keep=0.5).tokens(pixels, layers=[2, -1])
    tokens = pruned.tokens(pixels, layers=[2, -1])
    assert torch.equal(tokens.layers[2].patches, plain.layers[2].patches)
    assert torch.equal(tokens.layers[-1].patches, tokens.patches)
    assert not torch.equal(tokens.patches, plain.patches)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_the_memory_is_the_last_value_of_an_unmerged_patch(counts, merge, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 9, 3, generator=generator)
    tokens = KeptTokens.all_of(2, 9, x.device)
    own = [[[] for _ in range(9)] for _ in range(2)]  # values of each patch while it is unmerged
    for count in sorted(counts, reverse=True):
        note_unmerged(x, tokens, own)
        kept = select_top(torch.rand(x.shape[:2], generator=generator), count)
        assignment = torch.randint(count, x.shape[:2], generator=generator)
        assignment = assignment.scatter(1, kept, torch.arange(count).expand_as(kept))
        choice = Choice(kept, assignment)
        x, tokens = reduce_tokens(x, tokens, choice, fill="learned", merge=merge)
        x = x + torch.randn(x.shape, generator=generator)  # a block
    note_unmerged(x, tokens, own)
    expected = torch.stack([torch.stack([values[-1] for values in image]) for image in own])
    assert torch.equal(last_values(x, tokens), expected)


def note_unmerged(x, tokens, own):
    for image in range(2):
        assignment = tokens.assignment[image].tolist()
        for position, row in zip(tokens.positions[image].tolist(), x[image], strict=True):
            if tokens.sizes[image, assignment[position]] == 1:
                own[image][position].append(row)


def test_it_is_saved_loaded_and_distinguished(backbone, tmp_path):
    pixels = torch.randn(2, 3, 48, 48)
    torch.manual_seed(0)
    predictors = Predictors(backbone.width, 3)
    fill = fill_of("learned", backbone.width)
    pruned = prune_with(backbone, predictors, keep=0.5, fill=fill, merge=True)
    cv.save(pruned, tmp_path)
    again = cv.load(f"dir:{tmp_path}")
    assert again.plan == pruned.plan and again.plan.merge
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert again.fingerprint() == pruned.fingerprint()
    other = prune_with(backbone, predictors, keep=0.5, merge=True)
    assert other.fingerprint() != pruned.fingerprint()
    cv.save(other, tmp_path)
    assert cv.load(f"dir:{tmp_path}").learned_fill is None
    more = pruned.with_keep(0.8)
    assert more.plan.keep[0] == 0.8 and more.plan.merge
    assert more.predictors is predictors and more.learned_fill is fill
    cost, width = macs(pruned, 48), backbone.width
    assert cost.total - macs(other, 48).total == 36 * 3 * width**2


def test_a_graph_holds_it(backbone, tmp_path):
    pytest.importorskip("onnxruntime")
    small = load(tiny_network(depth=2, reg_tokens=2)).resized(64)
    fill = fill_of("learned", backbone.width)
    pruned = prune_with(small, keep=0.6, scorer="class", fill=fill, merge=True)
    assert cv.export(pruned, tmp_path / "graph", format="onnx").checks[0].passed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "learned"}, "trained LearnedFill"),
        ({"fill": LearnedFill(7)}, "7 channels"),
        ({"scorer": "merge", "merge": False}, "merges"),
        ({"scorer": "fuse", "merge": False}, "scorer='class'"),
    ],
)
def test_what_does_not_fit_is_refused(backbone, options, words):
    with pytest.raises(ModelError, match=words):
        prune_with(backbone, keep=0.5, **options)
