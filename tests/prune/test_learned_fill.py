"""Averaging with any scorer, and a fill that was learned."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.prune.cost import macs
from clearvit.prune.learned_fill import LearnedFill
from clearvit.prune.predictor import Predictors
from clearvit.prune.prune import prune
from clearvit.prune.selection import Choice, best
from clearvit.prune.survivors import Survivors, left_behind, shortened
from tests.conftest import tiny_network
from tests.prune.made_fills import fill_of


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(depth=4, reg_tokens=2))


def test_class_attention_with_averaging_is_fuse(backbone):
    pixels = torch.randn(2, 3, 48, 32)
    ours = prune(backbone, keep=0.6, scorer="class", average=True).tokens(pixels)
    fused = prune(backbone, keep=0.6, scorer="fuse").tokens(pixels)
    assert torch.equal(ours.patches, fused.patches) and torch.equal(ours.prefix, fused.prefix)
    dropped = prune(backbone, keep=0.6, scorer="class", average=False).tokens(pixels)
    assert not torch.allclose(dropped.prefix, fused.prefix, atol=1e-4)


@pytest.mark.parametrize("scorer", ["class", "fuse", "merge"])
def test_an_untrained_fill_is_the_one_most_similar(backbone, scorer):
    pixels = torch.randn(2, 3, 48, 32)
    untrained = prune(backbone, keep=0.5, scorer=scorer, fill=LearnedFill(backbone.width))
    plain = prune(backbone, keep=0.5, scorer=scorer)
    with torch.no_grad():
        assert torch.equal(untrained.forward(pixels).patches, plain.forward(pixels).patches)


def test_where_everybody_stays_nothing_is_filled(backbone):
    pixels = torch.randn(2, 3, 32, 32)
    pruned = prune(backbone, keep=1.0, fill=fill_of("learned", backbone.width))
    assert torch.equal(pruned.tokens(pixels).patches, backbone.tokens(pixels).patches)


def test_earlier_blocks_show_who_stands_for_a_patch(backbone):
    pixels = torch.randn(1, 3, 48, 48)
    pruned = prune(backbone, keep=0.5, fill=fill_of("learned", backbone.width))
    plain = prune(backbone, keep=0.5).tokens(pixels, layers=[2, -1])
    tokens = pruned.tokens(pixels, layers=[2, -1])
    assert torch.equal(tokens.layers[2].patches, plain.layers[2].patches)
    assert torch.equal(tokens.layers[-1].patches, tokens.patches)
    assert not torch.equal(tokens.patches, plain.patches)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_what_is_remembered_is_the_last_value_a_patch_had_on_its_own(counts, average, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 9, 3, generator=generator)
    survivors = Survivors.everyone(2, 9, x.device)
    own = [[[] for _ in range(9)] for _ in range(2)]  # values of each patch while it is alone
    for count in sorted(counts, reverse=True):
        note_alone(x, survivors, own)
        kept = best(torch.rand(x.shape[:2], generator=generator), count)
        heirs = torch.randint(count, x.shape[:2], generator=generator)
        heirs = heirs.scatter(1, kept, torch.arange(count).expand_as(kept))
        choice = Choice(kept, heirs)
        x, survivors = shortened(x, survivors, choice, fill="learned", average=average)
        x = x + torch.randn(x.shape, generator=generator)  # a block
    note_alone(x, survivors, own)
    expected = torch.stack([torch.stack([values[-1] for values in image]) for image in own])
    assert torch.equal(left_behind(x, survivors), expected)


def note_alone(x, survivors, own):
    for image in range(2):
        heirs = survivors.heirs[image].tolist()
        for place, row in zip(survivors.places[image].tolist(), x[image], strict=True):
            if survivors.sizes[image, heirs[place]] == 1:
                own[image][place].append(row)


def test_it_is_saved_loaded_and_told_apart(backbone, tmp_path):
    pixels = torch.randn(2, 3, 48, 48)
    torch.manual_seed(0)
    predictors = Predictors(backbone.width, 3)
    fill = fill_of("learned", backbone.width)
    pruned = prune(backbone, keep=0.5, scorer=predictors, fill=fill, average=True)
    cv.save(pruned, tmp_path)
    again = cv.load(f"dir:{tmp_path}")
    assert again.plan == pruned.plan and again.plan.average
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert again.fingerprint() == pruned.fingerprint()
    other = prune(backbone, keep=0.5, scorer=predictors, average=True)
    assert other.fingerprint() != pruned.fingerprint()
    cv.save(other, tmp_path)
    assert cv.load(f"dir:{tmp_path}").learned_fill is None
    more = pruned.keeping(0.8)
    assert more.plan.keep[0] == 0.8 and more.plan.average
    assert more.predictors is predictors and more.learned_fill is fill
    cost, width = macs(pruned, 48), backbone.width
    assert cost.total - macs(other, 48).total == 36 * 3 * width**2


def test_a_graph_holds_it(backbone, tmp_path):
    pytest.importorskip("onnxruntime")
    small = backbone.resized(64)
    fill = fill_of("learned", backbone.width)
    pruned = prune(small, keep=0.6, scorer="class", fill=fill, average=True)
    assert cv.export(pruned, tmp_path / "graph", format="onnx").checks[0].passed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "learned"}, "trained LearnedFill"),
        ({"fill": LearnedFill(7)}, "7 channels"),
        ({"scorer": "merge", "average": False}, "averages"),
        ({"scorer": "fuse", "average": False}, "scorer='class'"),
    ],
)
def test_what_does_not_fit_is_refused(backbone, options, words):
    with pytest.raises(ModelError, match=words):
        prune(backbone, keep=0.5, **options)
