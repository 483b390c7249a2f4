"""A delta and its original give the cured model, bit for bit, and hold nothing else."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from clearvit.backbones.load import load
from clearvit.backbones.saved import save_backbone
from clearvit.cure.delta import apply_delta, save_delta, weights_digest
from clearvit.cure.registers import with_registers
from clearvit.errors import ModelError
from tests.conftest import tiny_network

TRAINED = ("blocks.2.attn.qkv.weight", "pos_embed", "patch_embed.proj.bias")


def cured_from(original, count=2, trained=TRAINED):
    """Stand in for training: registers, and a change of some tensors."""
    cured = with_registers(original, torch.randn(count, original.width))
    with torch.no_grad():
        for name, parameter in cured.network.named_parameters():
            if name in trained:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return cured


def stored(path):
    with safe_open(path, framework="pt") as file:
        return set(file.keys()), file.metadata()


def test_bit_for_bit(tiny, tmp_path):
    cured = cured_from(tiny)
    again = apply_delta(load(tiny_network()), save_delta(tiny, cured, tmp_path / "d.safetensors"))
    assert again.fingerprint() == cured.fingerprint()
    assert again.blueprint == cured.blueprint
    pixels = torch.randn(2, 3, 40, 24)
    assert torch.equal(again.tokens(pixels).patches, cured.tokens(pixels).patches)
    assert again.prefix_names == ("class", "register", "register")


def test_only_registers_and_what_changed_is_stored(tiny, tmp_path):
    """The class position moved into the class token, which is no change of training."""
    names, metadata = stored(save_delta(tiny, cured_from(tiny), tmp_path / "d.safetensors"))
    assert names == {"reg_token", *TRAINED}
    assert metadata["format"] == "clearvit-delta-1" and metadata["source"] == tiny.name
    assert metadata["original"] == weights_digest(tiny.network.state_dict())
    assert metadata["positions"] == tiny.positions
    names, _ = stored(save_delta(tiny, cured_from(tiny, trained=()), tmp_path / "r.safetensors"))
    assert names == {"reg_token"}


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), count=st.integers(0, 3))
def test_any_set_of_trained_tensors(tiny, tmp_path, data, count):
    names = [name for name, _ in tiny.network.named_parameters()]
    trained = data.draw(st.sets(st.sampled_from(names), max_size=4))
    cured = cured_from(tiny, count, trained)
    path = save_delta(tiny, cured, tmp_path / "d.safetensors")
    assert stored(path)[0] == trained | ({"reg_token"} if count else set())
    assert apply_delta(tiny, path).fingerprint() == cured.fingerprint()


def test_a_model_with_registers_of_its_own(tmp_path):
    original = load(tiny_network(reg_tokens=2, no_embed_class=True))
    cured = original.around(copy.deepcopy(original.network), original.blueprint)
    with torch.no_grad():
        cured.network.norm.bias.add_(1)
    path = save_delta(original, cured, tmp_path / "d.safetensors")
    assert stored(path)[0] == {"norm.bias"}
    assert apply_delta(original, path).fingerprint() == cured.fingerprint()


def test_size_and_rule_are_those_of_the_cure(tiny, tmp_path):
    """The original is recognised by its weights, at whatever size it is used."""
    cured = cured_from(load(tiny_network(), positions="bicubic").resized(48))
    path = save_delta(tiny, cured, tmp_path / "d.safetensors")
    again = apply_delta(tiny.resized(64), path)
    assert again.positions == "bicubic" and again.preprocessing.size == (48, 48)
    assert again.fingerprint() == cured.fingerprint()
    assert tiny.positions == "bicubic-antialias" and tiny.preprocessing.size == (32, 32)


def test_the_wrong_original_is_named(tiny, tmp_path):
    path = save_delta(tiny, cured_from(tiny), tmp_path / "d.safetensors")
    other = load(tiny_network())
    with torch.no_grad():
        other.network.cls_token += 1e-6
    with pytest.raises(ModelError) as caught:
        apply_delta(other, path)
    for backbone in (tiny, other):
        assert weights_digest(backbone.network.state_dict())[:12] in str(caught.value)


def test_an_unrelated_model_cannot_be_a_delta(tiny, tmp_path):
    folder = save_backbone(tiny, tmp_path / "whole")
    with pytest.raises(ModelError, match="is no delta"):
        apply_delta(tiny, folder / "model.safetensors")
    with pytest.raises(ModelError, match="cannot read"):
        apply_delta(tiny, tmp_path / "nowhere.safetensors")


def test_a_damaged_delta_is_refused(tiny, tmp_path):
    path = save_delta(tiny, cured_from(tiny), tmp_path / "d.safetensors")
    _, metadata = stored(path)
    save_file({"norm.bias": torch.zeros(24)}, path, metadata={**metadata, "blueprint": "{"})
    with pytest.raises(ModelError, match="is damaged"):
        apply_delta(tiny, path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ModelError, match="cannot read"):
        apply_delta(tiny, path)


def test_edits_at_run_time_are_no_weights(tiny, tmp_path):
    class Edited(type(tiny)):
        pass

    cured = cured_from(tiny)
    cured.__class__ = Edited
    with pytest.raises(ModelError, match="is a Edited: what it adds"):
        save_delta(tiny, cured, tmp_path / "d.safetensors")
    assert not (tmp_path / "d.safetensors").exists()
