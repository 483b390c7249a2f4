"""Masking patches gives what removing them gives, and the gradients of the official code."""

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.errors import ModelError
from clearvit.pruning import import_dynamicvit
from clearvit.pruning.training import losses
from clearvit.pruning.training.masked import (
    attention_bias,
    check_maskable,
    gumbel_decide,
    gumbel_noise,
    masked_forward,
)
from tests.conftest import tiny_network
from tests.helpers.golden_dynamicvit import KEEP, official_outputs, save_checkpoint
from tests.helpers.made_pruned import BACKBONES, prune_with, random_predictors

STAGES = (1, 2, 3)


def given_masks(masks):
    return lambda stage, scores: masks[stage].to(scores)


@pytest.mark.parametrize(
    ("name", "fused"),
    [*((name, True) for name in BACKBONES), ("plain", False), ("rotary, registers", False)],
)
def test_masked_patches_change_nothing_for_kept_ones(name, fused):
    backbone = BACKBONES[name]()
    for block in backbone.network.blocks:
        block.attn.fused_attn = fused
    predictors = random_predictors(backbone.width, 3)
    pruned = prune_with(backbone, predictors, keep=0.6)
    pixels = torch.randn(3, 3, 5 * backbone.patch[0], 7 * backbone.patch[1])
    with torch.no_grad():
        removed = pruned.forward(pixels)
        masks = [removed.kept_stages[s] for s in STAGES]
        seen = masked_forward(backbone, predictors, STAGES, pixels, given_masks(masks))
    assert torch.equal(seen.kept, removed.kept)
    assert torch.allclose(seen.prefix, removed.prefix, atol=1e-5)
    kept = removed.kept
    assert torch.allclose(seen.patches[kept], removed.patches[kept], atol=1e-5)
    for stage, before in enumerate([torch.ones_like(kept), *masks[:-1]]):
        best = seen.scores[stage][..., 0].masked_fill(~before, -torch.inf)
        count = int(masks[stage][0].sum())
        chosen = torch.zeros_like(kept).scatter(1, best.topk(count, dim=1).indices, True)
        assert torch.equal(chosen, masks[stage])  # the predictors saw the same patches


def test_register_neurons_read_masked_patches_and_are_refused():
    plain = load(tiny_network(depth=4, reg_tokens=1, no_embed_class=True))
    check_maskable(NeuronBackbone(plain, {0: torch.tensor([0, 5])}), (1, 3))
    with pytest.raises(ModelError, match="register neurons in block 2"):
        check_maskable(NeuronBackbone(plain, {0: torch.tensor([1]), 2: torch.tensor([5])}), (1, 3))


_TINY = []


@given(st.integers(1, 5), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_any_decisions_nest_and_match_removal(height, width, fraction, seed):
    if not _TINY:
        _TINY.append((load(tiny_network(depth=4, reg_tokens=2)), random_predictors(24, 2)))
    backbone, predictors = _TINY[0]
    generator = torch.Generator().manual_seed(seed)
    masks = [torch.rand(1, height * width, generator=generator) < fraction for _ in range(2)]
    pixels = torch.randn(1, 3, 8 * height, 8 * width, generator=generator)
    with torch.no_grad():
        seen = masked_forward(backbone, predictors, (1, 3), pixels, given_masks(masks))
        x = backbone.embed_pixels(pixels).sequence
        for index, block in enumerate(backbone.network.blocks):
            if index in (1, 3):
                left = masks[0] if index == 1 else (masks[0] & masks[1])[masks[0]][None]
                x = torch.cat([x[:, :3], x[:, 3:][:, left[0]]], dim=1)
            x = block(x)
        x = backbone.network.norm(x)
    assert torch.equal(seen.kept, masks[0] & masks[1])
    assert torch.allclose(seen.prefix, x[:, :3], atol=1e-5)
    assert torch.allclose(seen.patches[seen.kept], x[0, 3:], atol=1e-5)


def official_softmax(logits, decision, prefix, epsilon):
    """Masked attention as DynamicViT defines it, in numpy: (n, n) logits, (N,) decision."""
    policy = np.concatenate([np.ones(prefix), decision])
    n = len(policy)
    seen = np.tile(policy, (n, 1))
    np.fill_diagonal(seen, 1)
    raised = np.exp(logits - logits.max(1, keepdims=True)) * seen
    return (raised + epsilon / n) / (raised.sum(1, keepdims=True) + epsilon)


def test_the_bias_is_the_official_masked_softmax():
    logits, decision = torch.randn(2, 1, 9, 9), (torch.rand(2, 7) < 0.5).float()
    decision[1] = 0
    ours = (logits + attention_bias(decision, 2)).softmax(-1)
    for image in range(2):
        given = logits[image, 0].double().numpy(), decision[image].numpy(), 2
        found = ours[image, 0].numpy()
        assert np.abs(found - official_softmax(*given, epsilon=0)).max() < 1e-5
        assert np.abs(found - official_softmax(*given, epsilon=1e-6)).max() < 1e-4
    assert torch.allclose(ours[1, 0, 3:, :2].sum(1) + ours[1, 0].diagonal()[3:], torch.ones(6))


def test_decisions_are_hard_with_soft_gradients():
    scores = torch.randn(2, 6, 2).log_softmax(-1).requires_grad_()
    noise = gumbel_noise((2, 1, 6, 2), torch.Generator().manual_seed(3))
    decision = gumbel_decide(noise)(0, scores)
    noisy = (scores + noise[:, 0]).detach()
    assert torch.allclose(decision.detach(), (noisy[..., 0] > noisy[..., 1]).float(), atol=1e-6)
    decision.sum().backward()
    soft = noisy.softmax(-1)[..., 0]
    assert torch.allclose(scores.grad[..., 0], soft * (1 - soft), atol=1e-6)
    assert torch.allclose(scores.grad[..., 1], -soft * (1 - soft), atol=1e-6)


def test_noise_is_gumbel_and_a_function_of_its_generator():
    one, two = (gumbel_noise((20_000,), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two) and one.isfinite().all()
    assert abs(float(one.mean()) - 0.5772) < 0.05
    assert abs(float(one.var()) - np.pi**2 / 6) < 0.1


@pytest.mark.parametrize("logits", [False, True])
def test_an_image_that_loses_every_patch_is_finite_with_gradients(logits):
    pool = {"class_token": False, "global_pool": "avg"} if logits else {}
    backbone = load(tiny_network(depth=4, num_classes=5 if logits else 0, **pool))
    predictors = random_predictors(24, 3)
    masks = [torch.ones(2, 16), torch.ones(2, 16), torch.ones(2, 16)]
    masks[0][0] = 0

    def decide(stage, scores):
        return masks[stage] * (1 + scores[..., 0] - scores[..., 0].detach())

    seen = masked_forward(backbone, predictors, STAGES, torch.randn(2, 3, 32, 32), decide)
    vector = backbone.network.forward_head(seen.sequence())
    total = vector.square().sum() + losses.ratio_loss(seen.decisions, [0.7, 0.5, 0.3])
    total = total + losses.token_loss(seen.patches, torch.zeros_like(seen.patches), seen.kept)
    assert total.isfinite() and not seen.kept[0].any()
    total.backward()
    parameters = [*predictors.parameters(), *backbone.network.parameters()]
    assert all(p.grad.isfinite().all() for p in parameters if p.grad is not None)


def test_computing_again_gives_the_same_gradients():
    backbone, predictors = load(tiny_network(depth=4)), random_predictors(24, 3)
    pixels, noise = torch.randn(2, 3, 32, 32), gumbel_noise((2, 3, 16, 2), torch.Generator())
    found = []
    for grad_checkpointing in (False, True):
        seen = masked_forward(
            backbone,
            predictors,
            STAGES,
            pixels,
            gumbel_decide(noise),
            grad_checkpointing=grad_checkpointing,
        )
        predictors.zero_grad()
        seen.prefix.square().sum().backward()
        found.append([p.grad.clone() for p in predictors.parameters()])
    assert any(gradient.abs().sum() > 0 for gradient in found[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))
    assert not any(block.attn._forward_pre_hooks for block in backbone.network.blocks)


def test_blocks_without_plain_attention_are_refused():
    backbone = load(timm.create_model("vit_small_patch16_18x2_224", img_size=32, depth=2))
    with pytest.raises(ModelError, match="cannot be trained"):
        check_maskable(backbone, (1,))


@pytest.fixture(scope="module")
def golden():
    return official_outputs()


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    path = save_checkpoint(tmp_path_factory.mktemp("official") / "model.safetensors")
    return import_dynamicvit(path, keep=KEEP)


def test_the_official_training_forward(golden, imported):
    masks = [golden[f"train_given_{s}"] for s in range(3)]
    with torch.no_grad():
        seen = masked_forward(
            imported.dense,
            imported.predictors,
            imported.plan.stages,
            golden["input"],
            given_masks(masks),
        )
        logits = imported.network.forward_head(seen.sequence())
    for stage in range(3):
        assert torch.equal(seen.decisions[stage], golden[f"train_decision_{stage}"].float())
        assert (seen.scores[stage] - golden[f"train_scores_{stage}"]).abs().max() <= 1e-4
    assert (logits - golden["train_logits"]).abs().max() <= 1e-4
    assert (seen.patches - golden["train_tokens"]).abs().max() <= 1e-4


def test_the_official_step_with_its_gradients(golden, imported):
    """A mask of -inf has the right losses here and the wrong gradients."""
    noise = torch.stack([golden[f"step_noise_{s}"] for s in range(3)], dim=1)
    seen = masked_forward(
        imported.dense,
        imported.predictors,
        imported.plan.stages,
        golden["input"],
        gumbel_decide(noise),
    )
    logits = imported.network.forward_head(seen.sequence())
    parts = [
        losses.cross_entropy(logits, golden["step_labels"]),
        losses.ratio_loss(seen.decisions, imported.plan.keep),
        losses.kl_divergence(logits, golden["step_teacher_logits"]),
        losses.token_loss(seen.patches, golden["step_teacher_tokens"], seen.kept),
    ]
    weights = losses.Weights()
    used = (weights.labels, weights.ratio, weights.logits, weights.tokens)
    total = sum(weight * part for weight, part in zip(used, parts, strict=True))
    parts[1] = 3 * parts[1]  # theirs is the sum over the stages
    found = torch.stack([total, *parts]).detach()
    assert (logits.detach() - golden["step_logits"]).abs().max() <= 1e-4
    assert (found - golden["step_loss"]).abs().max() <= 1e-4
    names = dict(imported.network.named_parameters())
    names |= {f"score_predictor.{k}": p for k, p in imported.predictors.named_parameters()}
    expected = {
        k.removeprefix("step_grad."): t for k, t in golden.items() if k.startswith("step_grad.")
    }
    gradients = torch.autograd.grad(total, [names[key] for key in expected])
    for (key, wanted), gradient in zip(expected.items(), gradients, strict=True):
        assert (gradient - wanted).abs().max() <= 1e-3 * wanted.abs().max(), key
