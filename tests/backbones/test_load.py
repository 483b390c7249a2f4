import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config

from clearvit.backbones.load import load
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.saved import save
from clearvit.errors import ModelError
from tests.conftest import tiny_network


@pytest.fixture
def saved(tmp_path):
    return save(load(tiny_network(reg_tokens=2, no_embed_class=True)), tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_small_patch14_dinov2.lvd142m", "Did you mean 'timm:vit_small_patch14_dinov2"),
        ("facebook/dinov2-base", "Did you mean 'hf:facebook/dinov2-base'"),
        ("demoo", "Closest: demo"),
        ("tim:vit_tiny_patch16_224", "no source 'tim:'. Closest: timm"),
        ("timm:", "Nothing follows the prefix"),
        ("timm:vit_smal_patch14_dinov2", "Closest: .*vit_small_patch14_dinov2"),
        ("timm:vit_small_patch14_dinov2.nope", "there are: vit_small_patch14_dinov2.lvd142m"),
        ("timm:vit_tiny_patch16_xp_224", "no model"),
        ("dir:nowhere", "holds no model"),
    ],
)
def test_a_wrong_name_gets_a_remedy(name, message):
    with pytest.raises(ModelError, match=message):
        load(name)


def test_a_directory_without_prefix_gets_both_prefixes(saved):
    with pytest.raises(ModelError, match="use 'dir:"):
        load(str(saved))


def test_saved_backbone_comes_back_exactly(saved):
    pixels = torch.randn(2, 3, 40, 24)
    original = load(tiny_network(reg_tokens=2, no_embed_class=True))
    again = load(f"dir:{saved}")
    assert torch.equal(again.tokens(pixels).patches, original.tokens(pixels).patches)
    assert again.preprocessing == original.preprocessing
    assert again.prefix_names == ("class", "register", "register")
    assert again.fingerprint() == original.fingerprint()


def test_plain_timm_loads_what_was_saved(saved):
    network = timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
    pixels = torch.randn(1, 3, 32, 32)
    ours = load(f"dir:{saved}").tokens(pixels)
    with torch.no_grad():
        theirs = network.forward_features(pixels)
    assert torch.equal(torch.cat([ours.prefix, ours.patches], 1), theirs)


def test_timm_local_dir_is_a_name_too(saved):
    pixels = torch.randn(1, 3, 32, 32)
    theirs = load(f"timm:local-dir:{saved}").tokens(pixels).patches
    assert torch.equal(theirs, load(f"dir:{saved}").tokens(pixels).patches)


def test_the_position_rule_is_saved_and_can_be_overridden(tmp_path):
    backbone = load(tiny_network(), positions="bicubic-offset")
    folder = save(backbone, tmp_path)
    assert load(f"dir:{folder}").positions == "bicubic-offset"
    assert load(f"dir:{folder}", positions="bicubic").positions == "bicubic"
    pixels = torch.randn(1, 3, 48, 48)
    again = load(f"dir:{folder}").tokens(pixels).patches
    assert torch.equal(again, backbone.tokens(pixels).patches)
    other = load(f"dir:{folder}", positions="bicubic").tokens(pixels).patches
    assert not torch.allclose(again, other)


def test_missing_unexpected_and_misshapen_keys_are_all_listed(saved):
    state = load_file(saved / "model.safetensors")
    del state["norm.weight"]
    state["extra.weight"] = torch.zeros(1)
    state["cls_token"] = torch.zeros(1, 1, 7)
    save_file(state, saved / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        load(f"dir:{saved}")
    text = str(caught.value)
    assert "differences: 3" in text
    for part in ("missing norm.weight", "unexpected extra.weight", "cls_token is (1, 1, 7)"):
        assert part in text


@pytest.mark.parametrize("file", ["model.safetensors", "clearvit.json"])
def test_a_damaged_file_is_named(saved, file):
    (saved / file).write_bytes((saved / file).read_bytes()[:20])
    with pytest.raises(ModelError, match=file):
        load(f"dir:{saved}")


def test_a_directory_of_timm_points_to_timm(saved):
    (saved / "clearvit.json").unlink()
    with pytest.raises(ModelError, match="timm:local-dir:"):
        load(f"dir:{saved}")


def test_a_directory_of_a_newer_version_is_refused(saved):
    config = json.loads((saved / "clearvit.json").read_text())
    (saved / "clearvit.json").write_text(json.dumps(config | {"format": 99}))
    with pytest.raises(ModelError, match="another version"):
        load(f"dir:{saved}")


@pytest.mark.parametrize(
    "name",
    [
        "deit_tiny_distilled_patch16_224",
        "vit_medium_patch16_reg4_gap_256",
        "vit_xsmall_patch16_clip_224",
        "vit_tiny_r_s16_p8_224",
        "eva02_tiny_patch14_224",
        "vit_small_patch16_dinov3",
        "vit_base_patch32_siglip_256",
    ],
)
def test_networks_of_many_kinds_survive_saving(name, tmp_path):
    backbone = load(timm.create_model(name, depth=2, img_size=128, dynamic_img_size=True))
    again = load(f"dir:{save(backbone, tmp_path)}")
    pixels = torch.randn(1, 3, *again.fitting_size(64))
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert again.prefix_names == backbone.prefix_names


def test_a_network_that_cannot_be_rebuilt_is_not_saved(tmp_path):
    network = tiny_network()
    network.blocks[1].mlp = torch.nn.Linear(24, 24)
    with pytest.raises(ModelError, match="do not fit"):
        save(load(network), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "stride"),
    [("swin_tiny_patch4_window7_224", 32), ("convnext_atto", 32), ("resnet18", 32)],
)
def test_grid_backbones_offer_tokens_and_say_what_they_lack(name, stride):
    network = timm.create_model(name, pretrained=False).eval()
    backbone = load(network)
    pixels = torch.randn(2, 3, 224, 224)
    tokens = backbone.tokens(pixels)
    assert tokens.grid == (224 // stride, 224 // stride)
    assert tokens.patches.shape == (2, 49, backbone.width)
    assert tokens.cls is None and tokens.registers.shape[1] == 0
    with torch.no_grad():
        features = network.forward_features(pixels)
    features = features.permute(0, 3, 1, 2) if name.startswith("swin") else features
    assert torch.equal(tokens.map, features)
    for options in ({"layers": [0]}, {"capture": ("key",)}, {"norm": False}):
        with pytest.raises(ModelError, match="grid-only backbone"):
            backbone.tokens(pixels, **options)


def test_a_swin_of_one_size_says_so_and_a_loaded_one_takes_any(monkeypatch):
    fixed = load(timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)))
    with pytest.raises(ModelError, match="built for one image size"):
        fixed.tokens(torch.randn(1, 3, 256, 256))
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained, **options: create(name, **options)
    )
    monkeypatch.setattr("clearvit.backbones.sources.timm.check_reachable", lambda name: None)
    loaded = load("timm:swin_tiny_patch4_window7_224.ms_in1k")
    assert loaded.tokens(torch.randn(1, 3, 96, 160)).grid == (3, 5)


def test_a_network_without_a_grid_is_refused():
    with pytest.raises(ModelError, match="neither a VisionTransformer"):
        load(torch.nn.Linear(3, 3))


def photo(height, width):
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_crop_is_timms_evaluation_transform(tiny):
    config = resolve_model_data_config(tiny.network) | {"crop_pct": 1.0, "input_size": (3, 32, 32)}
    theirs = create_transform(**config)(photo(64, 64))
    ours = Preprocessing(
        size=(32, 32), mean=config["mean"], std=config["std"], interpolation="bicubic", fit="crop"
    )(photo(64, 64))
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (5000, 1), (31, 77)])
def test_any_aspect_ratio_fits(fit, shape):
    preprocess = Preprocessing((24, 40), (0.5,) * 3, (0.5,) * 3, fit=fit)
    assert preprocess(photo(*shape)).shape == (3, 24, 40)


def test_pictures_paths_and_tensors_agree(tiny, tmp_path):
    photo(50, 70).save(tmp_path / "a.png")
    pixels = tiny.preprocessing(photo(50, 70))[None]
    expected = tiny.tokens(pixels).patches
    assert torch.equal(tiny.tokens(photo(50, 70)).patches, expected)
    assert torch.equal(tiny.tokens(tmp_path / "a.png").patches, expected)
    assert torch.equal(tiny.tokens(str(tmp_path)).patches, expected)
    assert len(tiny.tokens([photo(9, 9), tmp_path / "a.png"])) == 2
    assert tiny.tokens(photo(50, 70), size=(24, 40)).grid == (3, 5)


def test_resized_is_a_view_with_another_default(tiny):
    larger = tiny.resized(48)
    assert larger.network is tiny.network
    assert larger.tokens(photo(9, 9)).grid == (6, 6)
    assert tiny.tokens(photo(9, 9)).grid == (4, 4)
    assert load(tiny, size=(16, 24)).tokens(photo(9, 9)).grid == (2, 3)


def test_fingerprint_tells_weights_sizes_and_rules_apart(tiny):
    same = load(tiny_network())
    assert same.fingerprint() == tiny.fingerprint()
    assert load(tiny_network(), positions="bicubic").fingerprint() != tiny.fingerprint()
    assert tiny.resized(64).fingerprint() != tiny.fingerprint()
    with torch.no_grad():
        same.network.cls_token[0, 0, 0] += 1e-3
    assert same.fingerprint() != tiny.fingerprint()


def test_embed_without_text_tower_says_what_to_load(tiny):
    with pytest.raises(ModelError, match="openclip:ViT-B-16/openai"):
        tiny.embed(torch.randn(1, 3, 32, 32))
