"""A pruned backbone against plain loops over the same network, and what must always hold."""

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError
from clearvit.pruning.config import SCORERS
from clearvit.pruning.modules import Predictors
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from tests.conftest import tiny_network
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.made_pruned import BACKBONES, fill_of, prune_with

FILLS = ("similar", "delta", "mean", "learned")


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request):
    return BACKBONES[request.param]()


def by_hand(backbone, image, stages, counts):
    """Final tokens and kept positions of one image (1, 3, h, w), scored by the class token."""
    network, prefix = backbone.network, len(backbone.prefix_names)
    x, _, rope = backbone.embed_pixels(image)
    positions = torch.arange(x.shape[1] - prefix)
    for index, block in enumerate(network.blocks):
        if index in stages:
            attention = seen["attention"][0].mean(0)[0, prefix:]  # noqa: F821 - of the last block
            order = sorted(
                attention.argsort(descending=True)[: counts[stages.index(index)]].tolist()
            )
            positions = positions[order]
            x = torch.cat([x[:, :prefix], x[:, prefix:][:, order]], 1)
        rows = None
        if rope is not None:
            rows = rope[index][:, positions] if network.rope_mixed else rope[positions]
        before, seen = x, {}
        hook = block.attn.register_forward_hook(_matrix(seen), with_kwargs=True)
        x = block(before) if rope is None else block(before, rope=rows)
        hook.remove()
    return network.norm(x)[0], positions


def _matrix(seen):
    """A hook that forms the whole attention matrix with timm's own unfused code."""

    def hook(attention, arguments, options, output):
        fused, attention.fused_attn = attention.fused_attn, False
        drop = attention.attn_drop.register_forward_hook(
            lambda _m, _i, matrix: seen.update(attention=matrix)
        )
        forward = attention.forward
        forward(*arguments, **options)
        drop.remove()
        attention.fused_attn = fused

    return hook


@pytest.mark.parametrize("name", [n for n in BACKBONES if n != "no class token"])
def test_blocks_run_on_what_the_class_token_looks_at(name):
    backbone = BACKBONES[name]()
    pruned = prune(backbone, keep=0.6, scorer="class")
    pixels = torch.randn(3, 3, 5 * backbone.patch[0], 7 * backbone.patch[1])
    tokens = pruned.tokens(pixels)
    with torch.no_grad():
        for image in range(3):
            final, positions = by_hand(backbone, pixels[image : image + 1], [1, 2, 3], [21, 12, 7])
            prefix = len(backbone.prefix_names)
            assert tokens.kept[image].nonzero()[:, 0].tolist() == positions.tolist()
            assert torch.allclose(tokens.prefix[image], final[:prefix], atol=1e-5)
            assert torch.allclose(tokens.patches[image, positions], final[prefix:], atol=1e-5)


@pytest.mark.parametrize("scorer", SCORERS)
def test_counts_nesting_and_batch_independence(backbone, scorer):
    pruned = prune(backbone, keep=0.6, scorer=scorer)
    pixels = torch.randn(3, 3, 7 * backbone.patch[0], 5 * backbone.patch[1])
    tokens = pruned.tokens(pixels)
    before = torch.ones(3, 35, dtype=torch.bool)
    for stage, count in zip(pruned.plan.stages, (21, 12, 7), strict=True):
        mask = tokens.kept_stages[stage]
        assert (mask.sum(1) == count).all() and not (mask & ~before).any()
        before = mask
    assert torch.equal(tokens.kept, before)
    singles = Tokens.concatenate([pruned.tokens(image[None]) for image in pixels])
    assert torch.equal(singles.kept, tokens.kept)
    assert torch.allclose(singles.patches, tokens.patches, atol=1e-5)
    assert torch.allclose(singles.prefix, tokens.prefix, atol=1e-5)
    assert torch.equal(pruned.tokens(pixels, batch=2).kept, tokens.kept)


@given(
    st.integers(1, 6), st.integers(1, 6), st.floats(0.02, 1), st.sampled_from(SCORERS),
    st.sampled_from(FILLS),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_any_grid_any_share(height, width, keep, scorer, fill):
    backbone = any_grid()
    pruned = prune_with(backbone, keep=keep, scorer=scorer, fill=fill_of(fill, backbone.width))
    pixels = torch.randn(2, 3, 8 * height, 8 * width)
    tokens = pruned.tokens(pixels, layers=range(4), norm=False)
    counts = [max(1, int(height * width * keep**s)) for s in (1, 2, 3)]
    assert [int(tokens.kept_stages[s][0].sum()) for s in (1, 2, 3)] == counts
    assert tokens.patches.shape == (2, height * width, 24) and tokens.prefix.shape == (2, 3, 24)
    assert tokens.registers.shape == (2, 2, 24)
    assert tokens.patches.isfinite().all()
    assert torch.equal(tokens.layers[-1].patches, tokens.patches)
    assert torch.equal(tokens.layers[2].kept, tokens.kept_stages[2])
    if fill == "similar":
        for values, kept in zip(tokens.patches, tokens.kept, strict=True):
            same = (values[:, None] == values[kept][None]).all(-1)
            assert same.any(1).all()


_ANY_GRID = []


def any_grid():
    if not _ANY_GRID:
        _ANY_GRID.append(load(tiny_network(depth=4, reg_tokens=2)))
    return _ANY_GRID[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_keeping_everything_is_the_dense_model_bit_for_bit(name):
    torch.manual_seed(0)
    backbone = load(timm.create_model(name, dynamic_img_size=True, depth=2))
    pixels = torch.randn(1, 3, 3 * backbone.patch[0], 4 * backbone.patch[1])
    tokens, dense = prune(backbone, keep=1.0).tokens(pixels), backbone.tokens(pixels)
    assert torch.equal(tokens.patches, dense.patches) and torch.equal(tokens.prefix, dense.prefix)
    assert tokens.kept.all() and tokens.kept_stages[1].all()


@pytest.mark.parametrize("fill", FILLS)
def test_fills_agree_on_the_kept_and_differ_as_they_say(backbone, fill):
    pixels = torch.randn(2, 3, 6 * backbone.patch[0], 6 * backbone.patch[1])
    chosen = fill_of(fill, backbone.width)
    pruned = prune_with(backbone, keep=0.4, stages=[2], fill=chosen, scorer="class")
    tokens = pruned.tokens(pixels, norm=False, layers=[1])
    plain = prune(backbone, keep=0.4, stages=[2], scorer="class").tokens(pixels, norm=False)
    kept, dropped = tokens.kept, ~tokens.kept
    assert torch.equal(tokens.kept, plain.kept)
    assert torch.allclose(tokens.patches[kept], plain.patches[kept], atol=1e-6)
    then = tokens.layers[1].patches
    if fill == "mean":
        means = torch.stack([p[k].mean(0) for p, k in zip(tokens.patches, kept, strict=True)])
        expected = means[:, None].expand_as(then)[dropped]
        assert torch.allclose(tokens.patches[dropped], expected, atol=1e-5)
    if fill == "similar":
        keys = backbone.tokens(pixels, layers=[1], capture="key").key[1]
        unit = F.normalize(keys[:, :, len(backbone.prefix_names) :].mean(1), dim=-1)
        for image in range(2):
            positions = kept[image].nonzero()[:, 0]
            assigned = positions[(unit[image] @ unit[image][positions].T).argmax(1)]
            assert torch.equal(tokens.patches[image][dropped[image]],
                               tokens.patches[image][assigned][dropped[image]])  # fmt: skip
    if fill == "learned":
        expected = chosen(plain.patches, then)
        assert torch.allclose(tokens.patches[dropped], expected[dropped], atol=1e-5)
    if fill == "delta":  # as far from its assigned patch as it was when it was dropped
        for image in range(2):
            p, q, t = tokens.patches[image], plain.patches[image], then[image]
            positions = kept[image].nonzero()[:, 0]
            assigned = positions[(q[:, None] == q[positions][None]).all(-1).int().argmax(1)]
            assert torch.allclose(p - p[assigned], t - t[assigned], atol=1e-5)


def test_merged_patches_share_the_mean_of_their_group(tiny):
    pixels = torch.randn(1, 3, 32, 32)
    pruned = prune(tiny, keep=0.5, stages=[2], scorer="merge")
    before = tiny.tokens(pixels, layers=[1], norm=False).layers[1].patches[0]
    after = []
    hook = tiny.network.blocks[2].register_forward_pre_hook(lambda _m, i: after.append(i[0][0]))
    final = pruned.tokens(pixels, norm=False)
    hook.remove()
    values = final.patches[0]
    for row, position in enumerate(final.kept[0].nonzero()[:, 0].tolist()):
        group = (values == values[position]).all(-1)
        assert torch.allclose(after[0][1 + row], before[group].mean(0), atol=1e-5)


def test_the_argument_stays_as_it_was(tiny):
    pixels = torch.randn(1, 3, 32, 32)
    before, weights = tiny.tokens(pixels).patches, tiny.fingerprint()
    pruned = prune(tiny, keep=0.5)
    pruned.tokens(pixels, capture="key")
    assert torch.equal(tiny.tokens(pixels).patches, before) and tiny.fingerprint() == weights
    assert pruned.network is tiny.network and type(tiny) is not PrunedBackbone
    assert not any(m._forward_pre_hooks for m in tiny.network.modules())
    assert pruned.fingerprint() != tiny.fingerprint()
    assert prune(tiny, keep=0.6).fingerprint() != pruned.fingerprint()
    again = prune(pruned, keep=0.9)
    assert again.dense is tiny and again.plan.keep[0] == 0.9
    assert pruned.resized(64).preprocessing.size == pruned.resized(64).dense.preprocessing.size


def test_captured_tensors_lie_on_the_full_grid(backbone):
    pixels = torch.randn(2, 3, 4 * backbone.patch[0], 5 * backbone.patch[1])
    kinds = ("query", "key", "value", "attention", "prefix_attention")
    pruned = prune(backbone, keep=0.5, stages=[1, 3], scorer="class")
    dense = backbone.tokens(pixels, layers=[0, 3], capture=kinds)
    tokens = pruned.tokens(pixels, layers=[0, 3], capture=kinds)
    prefix = len(backbone.prefix_names)
    for kind in kinds:
        assert torch.equal(getattr(tokens, kind)[0], getattr(dense, kind)[0])
        assert getattr(tokens, kind)[-1].shape == getattr(dense, kind)[-1].shape
    attention = tokens.attention[-1]
    ones = torch.ones(attention.shape[:-1])
    assert torch.allclose(attention.sum(-1), ones, atol=1e-5)
    assert torch.equal((attention[:, 0, 0, prefix:] > 0), tokens.kept)
    assert torch.allclose(tokens.prefix_attention[-1], attention[:, :, :prefix], atol=1e-6)
    product = tokens.query[-1] @ tokens.key[-1].transpose(-2, -1)
    logits = product * backbone.network.blocks[3].attn.scale
    everyone = torch.cat([torch.ones(2, prefix, dtype=torch.bool), tokens.kept], 1)
    masked = logits.masked_fill(~everyone[:, None, None], -torch.inf).softmax(-1)
    assert torch.allclose(masked, attention, atol=1e-5)
    with pytest.raises(ModelError, match="fill='similar'"):
        prune(backbone, fill="mean", scorer="class").tokens(pixels, capture="key")


def test_a_predictor_that_drops_everyone_still_keeps_the_count(tiny):
    predictors = Predictors(24, 2)
    with torch.no_grad():
        for predictor in predictors:
            predictor.out_conv[4].bias.copy_(torch.tensor([-1e4, 1e4]))
    tokens = prune_with(tiny, predictors, keep=0.5).tokens(torch.randn(2, 3, 32, 32))
    assert tokens.patches.isfinite().all() and (tokens.kept.sum(1) == 4).all()
    gone = predictors[0](torch.randn(2, 9, 24), torch.zeros(2, 9))
    assert gone.isfinite().all()


def test_a_model_cured_by_register_neurons_is_pruned_with_its_edit():
    plain = load(tiny_network(reg_tokens=1, no_embed_class=True))
    cured = NeuronBackbone(plain, {1: torch.tensor([0, 5, 7])})
    pixels = torch.randn(2, 3, 32, 32)
    whole, dense = prune(cured, keep=1.0).tokens(pixels), cured.tokens(pixels, layers=[1])
    assert torch.equal(whole.patches, dense.patches)
    pruned = prune(cured, keep=0.5, stages=[2]).tokens(pixels, layers=[1])
    assert torch.equal(pruned.layers[1].registers, dense.layers[1].registers)
    assert not torch.equal(
        pruned.registers, prune(plain, keep=0.5, stages=[2]).tokens(pixels).registers
    )


def test_blocks_without_plain_attention_are_refused_at_once():
    backbone = load(timm.create_model("vit_small_patch16_18x2_224", img_size=32, depth=2))
    with pytest.raises(ModelError, match=r"no plain attention.*fill='mean'"):
        prune(backbone, keep=0.5)
    tokens = prune(backbone, keep=0.5, scorer="random", fill="mean").tokens(
        torch.randn(1, 3, 32, 32)
    )
    assert int(tokens.kept.sum()) == 2


def test_gradients_reach_the_pixels(tiny):
    pixels = torch.randn(1, 3, 32, 32, requires_grad=True)
    prune(tiny, keep=0.5, scorer="merge").forward(pixels).patches.square().sum().backward()
    assert pixels.grad.abs().sum() > 0
