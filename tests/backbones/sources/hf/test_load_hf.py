"""Every family gives the tokens of transformers, and every table can be undone."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from clearvit.backbones.load import load
from clearvit.backbones.saved import load_saved, save
from clearvit.backbones.sources.hf.families import FAMILIES, blueprint_for
from clearvit.backbones.sources.hf.load_hf import from_hf, load_hf, to_hf
from clearvit.errors import ModelError
from tests.helpers.hf_models import CASES, LARGER, NATIVE, OBLONG, SMALLER, saved_model, sequence

TOLERANCE = 1e-5
UNRESIZED = ("dinov2", "dinov3", "siglip2")  # these classes resize without being asked


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny matrices are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Name, model of transformers, our backbone, directory."""
    folder = tmp_path_factory.mktemp(request.param)
    model = saved_model(request.param, folder)
    return request.param, model, load(f"hf:{folder}"), folder


def checkpoint(folder):
    config = json.loads((folder / "config.json").read_text())
    return load_file(folder / "model.safetensors"), config


def tower_of(model):
    """Give the vision tower inside a model with a head or a partner."""
    for inner in ("vision_model", "vit", "deit", "dinov2", "dinov2_with_registers"):
        model = getattr(model, inner, model)
    return model


def sequence_of(name, model, pixels):
    """Run transformers; (B, P + N, C) after the final norm."""
    tower, options = tower_of(model), {"pixel_values": pixels}
    height, width = pixels.shape[2] // 8, pixels.shape[3] // 8
    if name.startswith("siglip2"):
        parts = pixels.unfold(2, 8, 8).unfold(3, 8, 8)  # (B, 3, H, W, 8, 8)
        options["pixel_values"] = parts.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        options["pixel_attention_mask"] = torch.ones(len(pixels), height * width)
        options["spatial_shapes"] = torch.tensor([[height, width]] * len(pixels))
    elif not name.startswith(UNRESIZED):
        options["interpolate_pos_encoding"] = True
    if name.startswith("mae"):  # ascending noise keeps the patches in order
        options["noise"] = torch.arange(height * width).float().expand(len(pixels), -1)
    with torch.no_grad():
        hidden = tower(**options).last_hidden_state
        return tower.post_layernorm(hidden) if name.startswith("clip") else hidden


@pytest.mark.parametrize("size", [NATIVE, SMALLER, LARGER, OBLONG], ids=str)
def test_tokens_are_those_of_transformers(case, size):
    name, model, backbone, _ = case
    pixels = torch.randn(2, 3, *size)
    theirs, ours = sequence_of(name, model, pixels), sequence(backbone, pixels)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= TOLERANCE


def test_saving_keeps_the_tokens(case, tmp_path):
    _, _, backbone, _ = case
    again = load_saved(save(backbone, tmp_path))
    assert again.positions == backbone.positions
    assert again.fingerprint() == backbone.fingerprint()
    pixels = torch.randn(1, 3, *OBLONG)
    assert torch.equal(sequence(again, pixels), sequence(backbone, pixels))


def test_tables_can_be_undone(case):
    name, _, backbone, folder = case
    _, config = checkpoint(folder)
    ours = backbone.network.state_dict()
    again = from_hf(to_hf(ours, config), config)
    assert again.keys() == ours.keys()
    assert all(torch.equal(again[key], ours[key]) for key in ours)
    assert blueprint_for(again, config) == backbone.blueprint, name


def test_going_back_gives_the_checkpoint(case):
    """Names and numbers of transformers, but for what the network has no place for."""
    name, _, _, folder = case
    theirs, config = checkpoint(folder)
    back = to_hf(from_hf(theirs, config), config)
    if name in ("clip", "siglip", "siglip-no-head", "siglip2"):  # transformers 4 wants a prefix
        back = {key.removeprefix("vision_model."): tensor for key, tensor in back.items()}
    assert set(back) <= set(theirs)
    dropped = ("classifier", "pooler", "decoder", "text_", "logit_", "mask_token")
    assert all(any(word in key for word in dropped) for key in set(theirs) - set(back))
    changed = {key for key in back if not torch.equal(back[key], theirs[key])}
    assert all("mask_token" in k or ("registers" in name and "embeddings." in k) for k in changed)


def test_transformers_loads_what_goes_back(case, tmp_path):
    name, model, _, folder = case
    theirs, config = checkpoint(folder)
    shutil.copy(folder / "config.json", tmp_path)
    back = {key: t.contiguous() for key, t in to_hf(from_hf(theirs, config), config).items()}
    save_file(back, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    pixels = torch.randn(1, 3, *LARGER)
    theirs, ours = (sequence_of(name, m, pixels) for m in (model, again.eval()))
    assert (theirs - ours).abs().max() <= TOLERANCE


def test_class_position_is_folded_and_returns_as_zero(tmp_path):
    saved_model("dinov2-registers", tmp_path)
    theirs, config = checkpoint(tmp_path)
    ours = from_hf(theirs, config)
    token, table = theirs["embeddings.cls_token"], theirs["embeddings.position_embeddings"]
    assert torch.equal(ours["cls_token"], token + table[:, :1])
    back = to_hf(ours, config)
    assert torch.equal(back["embeddings.cls_token"], ours["cls_token"])
    assert not back["embeddings.position_embeddings"][:, 0].any()
    assert torch.equal(back["embeddings.position_embeddings"][:, 1:], table[:, 1:])


@pytest.mark.parametrize("name", ["clip-projected", "clip-pair"])
def test_clip_projection_is_the_head(name, tmp_path):
    model = saved_model(name, tmp_path)
    backbone = load_hf(str(tmp_path))
    pixels = torch.randn(2, 3, *NATIVE)
    with torch.no_grad():
        pooled = tower_of(model)(pixels).pooler_output
        expected = model.visual_projection(pooled)
        assert torch.allclose(backbone._project(pixels), expected, atol=TOLERANCE)


def test_clip_head_with_a_bias_cannot_go_back(tmp_path):
    saved_model("clip-projected", tmp_path)
    theirs, config = checkpoint(tmp_path)
    ours = from_hf(theirs, config)
    ours["head.bias"] += 1
    with pytest.raises(ModelError, match="no bias to hold it"):
        to_hf(ours, config)


def test_siglip_pooling_is_the_head(tmp_path):
    model = saved_model("siglip", tmp_path)
    pixels = torch.randn(2, 3, *NATIVE)
    with torch.no_grad():
        expected = model(pixels).pooler_output
        ours = load_hf(str(tmp_path))._project(pixels)
    assert (ours - expected).abs().max() <= TOLERANCE


def test_oblong_native_size_and_patch(tmp_path):
    model = saved_model("vit", tmp_path, image_size=[32, 48], patch_size=[16, 8])
    backbone = load_hf(str(tmp_path))
    assert backbone.preprocessing.size == (32, 48) and backbone.patch == (16, 8)
    pixels = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        expected = model(pixels).last_hidden_state
    assert (sequence(backbone, pixels) - expected).abs().max() <= TOLERANCE


def test_each_family_has_its_own_position_rule():
    rules = {kind: family.positions for kind, family in FAMILIES.items()}
    assert rules["dinov2_with_registers"] == "bicubic-antialias"
    assert rules["siglip2_vision_model"] == "bilinear-antialias"
    assert rules["dinov2"] == rules["vit"] == rules["clip_vision_model"] == "bicubic"


def test_position_rule_can_be_chosen(tmp_path):
    saved_model("dinov2", tmp_path)
    assert load(f"hf:{tmp_path}", positions="bicubic-offset").positions == "bicubic-offset"


def test_defaults_that_transformers_leaves_out():
    """google/siglip-base-patch16-224 says nothing but its type."""
    classes = {
        "vit": transformers.ViTConfig,
        "deit": transformers.DeiTConfig,
        "vit_mae": transformers.ViTMAEConfig,
        "dinov2": transformers.Dinov2Config,
        "dinov2_with_registers": transformers.Dinov2WithRegistersConfig,
        "dinov3_vit": transformers.DINOv3ViTConfig,
        "clip_vision_model": transformers.CLIPVisionConfig,
        "siglip_vision_model": transformers.SiglipVisionConfig,
        "siglip2_vision_model": transformers.Siglip2VisionConfig,
    }
    assert classes.keys() == FAMILIES.keys()
    for kind, config_class in classes.items():
        full = config_class().to_dict()
        blank = blueprint_for({}, {"model_type": kind})
        assert blank == blueprint_for({}, {**full, "model_type": kind}), kind
