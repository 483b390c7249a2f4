"""Register neurons: the edit, the backbone that makes it, and what is saved of it."""

import json

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone, move_to_register, second_layer
from clearvit.backbones.saved import save
from clearvit.errors import ModelError
from clearvit.testing import planted
from tests.conftest import randomised, tiny_network

NEURONS = {0: torch.tensor([3, 90]), 2: torch.tensor([5])}


def network(**arguments):
    """A tiny ViT with one register and an MLP loud enough for the edit to show."""
    built = tiny_network(reg_tokens=1, no_embed_class=True, **arguments)
    with torch.no_grad():
        for block in built.blocks:
            block.mlp.fc1.weight.mul_(20)
            block.mlp.fc2.weight.mul_(5)
    return built


@pytest.fixture
def plain():
    return load(network())


@pytest.fixture
def edited(plain):
    return NeuronBackbone(plain, NEURONS)


def by_hand(hidden, units, register, spared):
    """The edit in plain numpy, one image and one unit at a time."""
    result = hidden.copy()
    for image in range(len(hidden)):
        for unit in units:
            column = hidden[image, :, unit]
            result[image, :, unit] = 0
            result[image, spared, unit] = column[spared]
            result[image, register, unit] = column[np.abs(column).argmax()]
    return result


@st.composite
def edits(draw):
    images, tokens, width = (draw(st.integers(low, 6)) for low in (1, 2, 1))
    seed = draw(st.integers(0, 10_000))
    hidden = torch.randn(images, tokens, width, generator=torch.Generator().manual_seed(seed))
    units = draw(st.lists(st.integers(0, width - 1), unique=True, max_size=width))
    register = draw(st.integers(0, tokens - 1))
    others = [token for token in range(tokens) if token != register]
    spared = draw(st.lists(st.sampled_from(others), unique=True, max_size=1))
    return hidden, torch.tensor(units, dtype=torch.long), register, spared


@settings(deadline=None, max_examples=60)
@given(edits())
def test_the_edit_equals_plain_numpy(edit):
    hidden, units, register, spared = edit
    ours = move_to_register(hidden, units, register, spared=spared)
    theirs = by_hand(hidden.numpy(), units.tolist(), register, spared)
    assert np.array_equal(ours.numpy(), theirs)


@settings(deadline=None, max_examples=60)
@given(edits())
def test_other_tokens_are_exactly_zero_and_other_units_untouched(edit):
    hidden, units, register, spared = edit
    result = move_to_register(hidden, units, register, spared=spared)
    others = [token for token in range(hidden.shape[1]) if token not in (register, *spared)]
    assert not result[:, others][..., units].any()
    rest = [unit for unit in range(hidden.shape[2]) if unit not in units.tolist()]
    assert torch.equal(result[..., rest], hidden[..., rest])
    assert torch.equal(move_to_register(result, units, register, spared=spared), result)


def test_the_strongest_value_keeps_its_sign():
    hidden = torch.tensor([[[1.0], [-3.0], [2.0]]])
    result = move_to_register(hidden, torch.tensor([0]), 0)
    assert result.flatten().tolist() == [-3.0, 0.0, 0.0]


def test_every_image_of_a_batch_is_edited(edited, plain):
    """The published code edits the first image of a batch only."""
    pixels = torch.randn(4, 3, 40, 40)
    together = edited.tokens(pixels)
    alone = [edited.tokens(picture[None]) for picture in pixels]
    for name in ("patches", "prefix"):
        single = torch.cat([getattr(tokens, name) for tokens in alone])
        torch.testing.assert_close(getattr(together, name), single, rtol=1e-4, atol=1e-5)
    moved = (together.patches - plain.tokens(pixels).patches).flatten(1).abs().amax(1)
    assert bool((moved > 1e-2).all())


def test_the_second_layer_reads_the_edited_units(edited):
    seen = {}
    handles = [
        second_layer(edited, block).register_forward_hook(
            lambda _, inputs, __, block=block: seen.update({block: inputs[0]})
        )
        for block in range(3)
    ]
    edited.tokens(torch.randn(2, 3, 32, 32))
    for handle in handles:
        handle.remove()
    for block, units in NEURONS.items():
        assert not seen[block][:, 2:, units].any()
        assert seen[block][:, 0, units].any() and seen[block][:, 1, units].any()
    assert seen[1][:, 2:].abs().amin((0, 1)).any()


def test_the_class_token_can_be_edited_too(plain):
    pixels = torch.randn(1, 3, 32, 32)
    spared, all_of_them = (
        NeuronBackbone(plain, {2: torch.arange(20)}, spare_class=spare).tokens(pixels)
        for spare in (True, False)
    )
    raw = plain.tokens(pixels)
    assert torch.equal(spared.cls, raw.cls)  # nothing follows the last MLP that mixes tokens
    assert not torch.allclose(all_of_them.cls, raw.cls)
    assert torch.equal(spared.patches, all_of_them.patches)


def test_no_hook_stays_behind(edited, monkeypatch):
    pixels = torch.randn(1, 3, 32, 32)
    edited.tokens(pixels)
    layer = second_layer(edited, 0)
    monkeypatch.setattr(edited.network.blocks[0].mlp, "drop2", torch.nn.Linear(7, 7))
    with pytest.raises(RuntimeError):
        edited.tokens(pixels)
    assert not layer._forward_pre_hooks


def test_without_neurons_it_is_the_plain_model(plain):
    pixels = torch.randn(1, 3, 32, 32)
    again = NeuronBackbone(plain, {}).tokens(pixels)
    assert torch.equal(again.patches, plain.tokens(pixels).patches)


def test_gradients_flow(edited):
    pixels = torch.randn(1, 3, 32, 32, requires_grad=True)
    edited.forward(pixels).patches.square().sum().backward()
    assert pixels.grad.abs().sum() > 0


def test_it_can_be_moved_resized_and_rewrapped(edited, plain):
    pixels = torch.randn(1, 3, 48, 48)
    expected = edited.tokens(pixels).patches
    other = edited.to("cpu").resized(48).around(plain.network, plain.blueprint)
    assert isinstance(other, NeuronBackbone) and other.preprocessing.size == (48, 48)
    assert torch.equal(other.tokens(pixels).patches, expected)


def test_the_fingerprint_tells_neurons_apart(edited, plain):
    others = [plain, NeuronBackbone(plain, {0: NEURONS[0]})]
    others.append(NeuronBackbone(plain, NEURONS, spare_class=False))
    prints = [backbone.fingerprint() for backbone in [edited, *others]]
    assert len(set(prints)) == 4
    assert NeuronBackbone(plain, dict(reversed(NEURONS.items()))).fingerprint() == prints[0]


@pytest.mark.parametrize("spare", [True, False])
def test_saved_neurons_come_back_exactly(plain, tmp_path, spare):
    backbone = NeuronBackbone(plain, NEURONS, spare_class=spare)
    again = load(f"dir:{save(backbone, tmp_path)}")
    pixels = torch.randn(2, 3, 40, 24)
    assert isinstance(again, NeuronBackbone)
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert again.fingerprint() == backbone.fingerprint()


def test_plain_timm_cannot_load_it_uncured(edited, plain, tmp_path):
    save(plain, tmp_path)
    save(edited, tmp_path)  # over a model that timm could load
    assert not (tmp_path / "config.json").exists()
    assert json.loads((tmp_path / "clearvit.json").read_text())["neurons"] == {
        "0": [3, 90],
        "2": [5],
    }
    save(plain, tmp_path)
    assert (tmp_path / "config.json").exists()
    assert not isinstance(load(f"dir:{tmp_path}"), NeuronBackbone)


def test_gated_mlps_are_edited_after_the_gate():
    net = timm.create_model("eva02_tiny_patch14_224", depth=2, img_size=56, num_reg_tokens=1)
    backbone = load(randomised(net))
    width = second_layer(backbone, 1).in_features
    edited = NeuronBackbone(backbone, {1: torch.arange(width)}, spare_class=False)
    pixels = torch.randn(1, 3, 56, 56)
    layer, hidden = second_layer(edited, 1), []
    handle = layer.register_forward_hook(lambda _, inputs, __: hidden.append(inputs[0]))
    edited.tokens(pixels)
    handle.remove()
    assert not hidden[0][:, 2:].any() and hidden[0][:, 1].any()


@pytest.mark.parametrize(
    ("neurons", "message"),
    [
        ({3: torch.tensor([0])}, "blocks 0 to 2, not 3"),
        ({0: torch.tensor([96])}, "from 0 to 95"),
        ({0: torch.tensor([1, 1])}, "different numbers"),
    ],
)
def test_wrong_neurons_are_refused(plain, neurons, message):
    with pytest.raises(ModelError, match=message):
        NeuronBackbone(plain, neurons)


def test_what_cannot_hold_them_is_refused(tiny, plain):
    with pytest.raises(ModelError, match="with_registers"):
        NeuronBackbone(tiny, {})
    with pytest.raises(ModelError, match="plain ViT"):
        NeuronBackbone(planted(plain, "high-norm").backbone, {})
    parallel = timm.create_model("vit_small_patch16_18x2_224", depth=1, reg_tokens=1)
    with pytest.raises(ModelError, match="Mlp, GluMlp or SwiGLU"):
        NeuronBackbone(load(parallel), {0: torch.tensor([0])})
