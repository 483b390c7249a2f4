"""A default cure of any family still goes to transformers."""

import pytest
import timm
import torch
import transformers

import clearvit as cv
from clearvit.formats.export import export
from tests.conftest import randomised
from tests.helpers.photos import soft_photos

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 0, "dynamic_img_size": True}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 12, size=(80, 80))


@pytest.mark.parametrize(
    ("name", "side", "kind"),
    [
        ("vit_tiny_patch16_224", 64, "ViTModel"),
        ("deit_tiny_patch16_224", 64, "ViTModel"),
        ("deit_tiny_distilled_patch16_224", 64, "DeiTModel"),
        ("vit_small_patch14_dinov2", 70, "Dinov2WithRegistersModel"),
        ("vit_base_patch16_clip_quickgelu_224", 64, "CLIPVisionModel"),
        ("vit_base_patch16_siglip_224", 64, "SiglipVisionModel"),
    ],
)
def test_a_default_cure_can_be_exported(name, side, kind, photos, tmp_path):
    torch.manual_seed(0)
    network = randomised(timm.create_model(name, img_size=side, **SMALL))
    cured = cv.cure(
        cv.load(network), photos, out=tmp_path / "cured", epochs=1, views=2, keep_anyway=True
    )
    done = export(cv.load(f"dir:{tmp_path / 'cured'}"), tmp_path / "hf", format="hf")
    assert done.reader == "transformers" and done.difference <= 1e-5
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.architectures == [kind]
    assert cured.prefix_names.count("register") == (16 if "Registers" in kind else 0)
