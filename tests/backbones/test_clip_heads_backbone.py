"""A dense head is a backbone like any other, and leaves the network as it was."""

import json

import pytest
import timm
import torch

import clearvit as cv
from clearvit.backbones import clip_heads
from clearvit.backbones.clip_heads import HEADS, DenseClip, dense_clip
from clearvit.backbones.load import load
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.cures.registers import with_registers
from clearvit.errors import ModelError
from clearvit.views.sampling import Views
from tests.conftest import randomised, tiny_network

TOLERANCE = 1e-5


def tiny_clip():
    """A CLIP tower of three blocks that projects 24 channels to 10."""
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
    network = timm.create_model("vit_xsmall_patch16_clip_224", num_classes=10, **options)
    return load(randomised(network))


@pytest.fixture(scope="module")
def clip():
    return tiny_clip()


@pytest.fixture
def pixels():
    return torch.randn(2, 3, 32, 48)


def sequence(tokens):
    return torch.cat([tokens.prefix, tokens.patches], 1)


@pytest.mark.parametrize("head", HEADS)
def test_an_image_does_not_feel_its_batch(clip, head, pixels):
    dense = dense_clip(clip, head)
    together = sequence(dense.tokens(pixels))
    alone = torch.cat([sequence(dense.tokens(picture[None])) for picture in pixels])
    assert together.shape == (2, 1 + 4 * 6, 10)
    assert (together - alone).abs().max() <= TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_layers_and_captures_are_those_of_the_network(clip, head, pixels):
    asked = {"layers": [0, -1], "norm": False, "capture": ("key", "attention")}
    ours, theirs = dense_clip(clip, head).tokens(pixels, **asked), clip.tokens(pixels, **asked)
    for block in (0, -1):
        assert torch.equal(sequence(ours.layers[block]), sequence(theirs.layers[block]))
        assert torch.equal(ours.attention[block], theirs.attention[block])
    assert torch.equal(ours.patches, dense_clip(clip, head).tokens(pixels, norm=False).patches)
    captured = dense_clip(clip, head).tokens(pixels, capture="key")
    assert torch.equal(captured.key[-1], theirs.key[-1])


def test_without_the_final_norm_the_projection_stays(clip, pixels):
    raw = dense_clip(clip, "clip").tokens(pixels, norm=False)
    with torch.no_grad():
        expected = clip.network.head(clip.tokens(pixels, norm=False).patches)
    assert not raw.normed
    assert torch.equal(raw.patches, expected)


def test_the_network_is_shared_and_stays_as_it_was(clip, pixels):
    before, mode = clip.tokens(pixels).patches, clip.network.training
    clip.network.train()
    dense = dense_clip(clip, "naclip")
    assert clip.network.training
    clip.network.train(mode)
    assert dense.network is clip.network
    dense.tokens(pixels)
    assert torch.equal(clip.tokens(pixels).patches, before)
    assert clip.width == 24 and dense.width == 10
    assert "DenseClip" in repr(dense) and "10 channels" in repr(dense)


def test_another_head_of_the_same_network(clip, pixels):
    exchanged = dense_clip(dense_clip(clip, "naclip"), "maskclip")
    assert exchanged.plain is clip
    assert torch.equal(exchanged.tokens(pixels).patches, dense_clip(clip).tokens(pixels).patches)


def test_fingerprints_tell_heads_apart(clip):
    prints = {dense_clip(clip, head).fingerprint() for head in HEADS}
    prints |= {clip.fingerprint(), dense_clip(clip, "naclip", std=2).fingerprint()}
    assert len(prints) == len(HEADS) + 2
    assert dense_clip(clip, "naclip", std=5).fingerprint() == (
        dense_clip(clip, "naclip").fingerprint()
    )


def test_resized_and_moved(clip):
    dense = dense_clip(clip, "naclip")
    larger = dense.resized((40, 48)).to("cpu")
    assert isinstance(larger, DenseClip)
    assert larger.preprocessing.size == larger.plain.preprocessing.size == (40, 48)
    assert dense.preprocessing.size == dense.plain.preprocessing.size == (32, 32)
    assert larger.fingerprint() == dense_clip(clip.resized((40, 48)), "naclip").fingerprint()


def test_gradients_after_inference_mode(pixels):
    dense = dense_clip(tiny_clip(), "naclip")
    clip_heads._window_bias.cache_clear()
    with torch.inference_mode():
        dense.forward(pixels)
    dense.forward(pixels).patches.sum().backward()
    assert dense.network.cls_token.grad.abs().sum() > 0


@pytest.mark.parametrize("head", HEADS)
def test_half_precision_autocast(clip, head, pixels):
    dense = dense_clip(clip, head)
    exact = dense.tokens(pixels).patches
    with torch.autocast("cpu", torch.bfloat16):
        rough = dense.tokens(pixels).patches.float()
    assert torch.cosine_similarity(rough, exact, dim=-1).min() > 0.99


# --- with the other verbs ---------------------------------------------------------------------


def test_denoise_works_on_it(clip, pixels):
    dense = dense_clip(clip, "naclip")
    clean = cv.denoise(dense, pixels, views=4)
    assert clean.patches.shape == (2, 24, 10)
    one = Views(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.bool))
    untouched = cv.denoise(dense, pixels, views=one).patches
    assert (untouched - dense.tokens(pixels).patches).abs().max() <= TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_a_student_with_registers(clip, head, pixels):
    dense = dense_clip(clip, head, std=3)
    student = with_registers(dense, 0.1 * torch.randn(4, clip.width))
    assert isinstance(student, DenseClip)
    assert (student.head, student.std, student.width) == (head, 3, 10)
    tokens = student.tokens(pixels)
    assert tokens.registers.shape == (2, 4, 10)
    assert tokens.patches.shape == dense.tokens(pixels).patches.shape
    assert not torch.equal(tokens.patches, dense.tokens(pixels).patches)
    without = with_registers(dense, torch.zeros(0, clip.width))
    assert torch.equal(without.tokens(pixels).patches, dense.tokens(pixels).patches)


def test_neurons_under_the_head_are_moved(clip, pixels):
    plain = with_registers(clip, torch.zeros(1, clip.width))
    edited = NeuronBackbone(plain, {0: torch.arange(40)})
    ours = dense_clip(edited).tokens(pixels).patches
    assert (ours - dense_clip(plain).tokens(pixels).patches).abs().max() > TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_saving_keeps_the_head(clip, head, tmp_path, pixels):
    dense = dense_clip(clip.resized(48), head, std=2.5)
    again = cv.load(f"dir:{cv.save(dense, tmp_path)}")
    assert isinstance(again, DenseClip)
    assert again.fingerprint() == dense.fingerprint()
    assert torch.equal(again.tokens(pixels).patches, dense.tokens(pixels).patches)
    assert json.loads((tmp_path / "clearvit.json").read_text())["head"] == head
    timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


def test_saving_keeps_neurons_under_the_head(clip, tmp_path, pixels):
    plain = with_registers(clip, torch.zeros(1, clip.width))
    dense = dense_clip(NeuronBackbone(plain, {0: torch.arange(40)}))
    again = cv.load(f"dir:{cv.save(dense, tmp_path)}")
    assert again.fingerprint() == dense.fingerprint()
    assert torch.equal(again.tokens(pixels).patches, dense.tokens(pixels).patches)


# --- errors -----------------------------------------------------------------------------------


def test_models_without_a_projection(tiny):
    with pytest.raises(ModelError, match=r"no projection to a text space.*openclip:ViT-B-16"):
        dense_clip(tiny)


def test_attention_pooling_is_refused():
    network = tiny_network(num_classes=10, global_pool="map", class_token=False)
    with pytest.raises(ModelError, match=r"SigLIP.*backbone.tokens\(images\)"):
        dense_clip(load(network))


def test_blocks_that_cannot_be_taken_apart(pixels):
    from timm.models.vision_transformer import ParallelScalingBlock

    backbone = load(tiny_network(num_classes=10, block_fn=ParallelScalingBlock))
    with pytest.raises(ModelError, match=r"ParallelScalingBlock.*Only head='clip'"):
        dense_clip(backbone, "naclip")
    assert dense_clip(backbone, "clip").tokens(pixels).patches.shape == (2, 24, 10)


def test_grids_are_refused():
    grid = load(timm.create_model("test_convnext"))
    with pytest.raises(ModelError, match="is no ViT"):
        dense_clip(grid)


@pytest.mark.parametrize("std", [0, -1, float("nan"), float("inf")])
def test_windows_need_a_width(clip, std):
    with pytest.raises(ModelError, match="positive number of patches"):
        dense_clip(clip, "naclip", std=std)


def test_unknown_heads_are_listed(clip):
    with pytest.raises(ModelError, match=r"head is 'nacllip'.*Closest: naclip"):
        dense_clip(clip, "nacllip")
