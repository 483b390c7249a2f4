"""What is exported loads in plain timm and plain transformers and gives the same tokens."""

import importlib.util
import json

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import clearvit
from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.cli import app
from clearvit.cures.registers import with_registers
from clearvit.errors import ModelError, OptionError
from clearvit.formats import native
from clearvit.formats.export import WRITERS, export
from clearvit.formats.parity import TOLERANCE, compare
from tests.conftest import randomised, tiny_network

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 0}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(name, **arguments):
    torch.manual_seed(0)
    options = {**SMALL, "img_size": 64, "dynamic_img_size": True, **arguments}
    return load(randomised(timm.create_model(name, **options)))


def dinov2(**arguments):
    return network("vit_small_patch14_dinov2", **{"img_size": 70, **arguments})


def cured_dinov2(count=3):
    return with_registers(dinov2(), torch.randn(count, 48))


def sequence(backbone, pixels):
    tokens = backbone.tokens(pixels)
    return torch.cat([tokens.prefix, tokens.patches], dim=1)


# --- formats --------------------------------------------------------------------------------


def test_the_room_is_the_verb():
    assert callable(clearvit.export)
    with pytest.raises(OptionError, match=r"use timm, hf.* Closest: timm"):
        clearvit.export(dinov2(), "out", format="tim")
    assert tuple(WRITERS)[:2] == ("timm", "hf")


def test_timm_gives_the_same_tokens_at_both_sizes(tmp_path):
    done = export(cured_dinov2(), tmp_path / "out", format="timm")
    assert done.reader == "timm" and not done.notes
    assert [check.size for check in done.checks] == [(70, 70), (28, 56)]
    assert done.difference == max(check.difference for check in done.checks) <= 1e-5


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("vit_small_patch14_dinov2", {"img_size": 70}, "Dinov2Model"),
        ("vit_giant_patch14_dinov2", {"img_size": 70, "mlp_ratio": 16 / 3}, "Dinov2Model"),
        ("vit_small_patch14_reg4_dinov2", {"img_size": 70}, "Dinov2WithRegistersModel"),
        (
            "vit_small_patch14_reg4_dinov2",  # positions for the registers too: folded
            {"img_size": 70, "no_embed_class": False},
            "Dinov2WithRegistersModel",
        ),
        ("vit_small_patch16_dinov3_qkvb", {}, "DINOv3ViTModel"),
        ("vit_small_patch16_dinov3", {}, "DINOv3ViTModel"),
        ("vit_small_plus_patch16_dinov3_qkvb", {}, "DINOv3ViTModel"),
        ("vit_tiny_patch16_224", {"num_classes": 10}, "ViTModel"),
        ("deit_tiny_patch16_224", {}, "ViTModel"),
        ("deit_tiny_distilled_patch16_224", {}, "DeiTModel"),
        ("vit_base_patch16_clip_quickgelu_224", {}, "CLIPVisionModel"),
        ("vit_base_patch16_siglip_224", {}, "SiglipVisionModel"),
        ("vit_base_patch16_siglip_gap_224", {}, "SiglipVisionModel"),
    ],
)
def test_every_family_goes_back_to_its_own_class(name, arguments, kind, tmp_path):
    backbone = network(name, **arguments)
    done = export(backbone, tmp_path, format="hf")
    assert done.reader == "transformers" and done.difference <= 1e-5
    options = {"add_pooling_layer": False} if kind in ("ViTModel", "DeiTModel") else {}
    model, info = transformers.AutoModel.from_pretrained(
        tmp_path, output_loading_info=True, **options
    )
    assert type(model).__name__ == kind
    assert not info["missing_keys"] and not info["unexpected_keys"]
    pixels = torch.randn(2, 3, *done.checks[0].size)
    with torch.no_grad():
        hidden = model.eval()(pixel_values=pixels).last_hidden_state
        hidden = model.post_layernorm(hidden) if kind.startswith("CLIP") else hidden
    assert (hidden - sequence(backbone, pixels)).abs().max() <= 1e-5
    again = load(f"hf:{tmp_path}")  # and to us
    assert (sequence(again, pixels) - sequence(backbone, pixels)).abs().max() <= 1e-5


def test_a_cured_dinov2_is_dinov2_with_registers(tmp_path):
    """transformers wants a row for the class position; ours is in the token, so it is zero."""
    cured = cured_dinov2(5)
    done = export(cured, tmp_path, format="hf")
    state = load_file(tmp_path / "model.safetensors")
    assert not state["embeddings.position_embeddings"][:, 0].any()
    assert torch.equal(state["embeddings.cls_token"], cured.network.cls_token.data)
    assert state["embeddings.register_tokens"].shape == (1, 5, 48)
    assert json.loads((tmp_path / "config.json").read_text())["num_register_tokens"] == 5
    assert len(done.checks) == 2 and not done.notes  # the rules agree


def test_the_projection_of_clip_goes_along(tmp_path):
    backbone = network("vit_base_patch16_clip_224", num_classes=20)
    with torch.no_grad():
        backbone.network.head.bias.zero_()
    export(backbone, tmp_path, format="hf")
    model = transformers.CLIPVisionModelWithProjection.from_pretrained(tmp_path).eval()
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        theirs = model(pixel_values=pixels).image_embeds
        ours = backbone._project(pixels)
    assert (theirs - ours).abs().max() <= 1e-5


# --- positions ------------------------------------------------------------------------------


def test_another_rule_is_said_and_only_the_native_size_compared(tmp_path):
    backbone = dinov2()  # timm's rule; Dinov2Model has another
    done = export(backbone, tmp_path, format="hf")
    assert [check.size for check in done.checks] == [(70, 70)]
    assert "'bicubic-antialias', transformers by 'bicubic'" in done.notes[0]
    pixels = torch.randn(1, 3, 42, 42)
    assert (
        sequence(load(f"hf:{tmp_path}"), pixels) - sequence(backbone, pixels)
    ).abs().max() > 1e-3


def test_the_table_is_made_for_the_size_of_work_where_rules_differ(tmp_path):
    backbone = dinov2().resized(42)
    done = export(backbone, tmp_path, format="hf")
    assert [check.size for check in done.checks] == [(42, 42)] and done.difference <= 1e-5
    assert "at 42x42 px only" in done.notes[0]
    assert json.loads((tmp_path / "config.json").read_text())["image_size"] == 42
    agreeing = export(cured_dinov2().resized(42), tmp_path / "b", format="hf")
    assert agreeing.checks[0].size == (70, 70)  # nothing to gain: the table stays whole


def test_timm_too_has_a_rule(tmp_path):
    done = export(load(dinov2().network, positions="bicubic"), tmp_path)
    assert len(done.checks) == 1 and "timm by 'bicubic-antialias'" in done.notes[0]


def test_the_second_size_can_be_chosen(tmp_path):
    done = export(cured_dinov2(), tmp_path, format="hf", check=(28, 98))
    assert done.checks[1].size == (28, 98)


# --- the check can fail -----------------------------------------------------------------------


def test_a_copy_with_other_tokens_is_an_error_and_stays(tmp_path, monkeypatch):
    right = native.save_hf

    def wrong(backbone, out):
        folder = right(backbone, out)
        state = load_file(folder / "model.safetensors")
        state["encoder.layer.1.mlp.fc1.weight"] *= 1.01
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    monkeypatch.setattr(native, "save_hf", wrong)
    with pytest.raises(ModelError, match="computes other tokens from it"):
        export(dinov2(), tmp_path / "out", format="hf")
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_nan_and_other_shapes_never_pass():
    backbone = dinov2()
    assert not compare(backbone, lambda p: torch.full((2, 26, 48), torch.nan), (70, 70)).passed
    assert not compare(backbone, lambda p: torch.zeros(2, 25, 48), (70, 70)).passed
    exact = compare(backbone, lambda p: sequence(backbone, p), (70, 70))
    assert exact.passed and exact.difference == 0
    off = compare(backbone, lambda p: sequence(backbone, p) * (1 + TOLERANCE), (70, 70))
    assert not off.passed


def test_timm_cannot_be_told_an_epsilon(tmp_path):
    """A Hugging Face model with odd norms would load in timm without a word and be wrong."""
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=8, layer_norm_eps=0.1,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(tmp_path / "odd")
    odd = load(f"hf:{tmp_path / 'odd'}")
    with pytest.raises(ModelError, match="timm computes other tokens"):
        export(odd, tmp_path / "timm")
    assert export(odd, tmp_path / "hf", format="hf").difference <= 1e-5


# --- refusals -------------------------------------------------------------------------------


def test_registers_without_a_class_to_hold_them(tiny, tmp_path):
    cured = with_registers(tiny, torch.randn(2, 24))
    with pytest.raises(ModelError, match=r"family \(vit\) can hold registers; use format='timm'"):
        export(cured, tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()
    assert export(cured, tmp_path / "timm").difference <= 1e-5


@pytest.mark.parametrize("name", ["deit3_small_patch16_224", "eva02_tiny_patch14_224"])
def test_unknown_networks_are_refused_with_a_list(name, tmp_path):
    backbone = load(timm.create_model(name, depth=1, dynamic_img_size=True))
    with pytest.raises(ModelError, match=r"vit, deit, dinov2.*use format='timm'"):
        export(backbone, tmp_path, format="hf")


def test_pooling_before_the_norm_is_refused(tmp_path):
    with pytest.raises(ModelError, match="norms its tokens only after pooling"):
        export(load(tiny_network(global_pool="avg")), tmp_path, format="hf")


def test_an_oblong_table_is_refused(tmp_path):
    with pytest.raises(ModelError, match="square table"):
        export(dinov2(img_size=(70, 42)), tmp_path, format="hf")


def test_grids_and_heads_are_refused(tmp_path):
    from clearvit.backbones.clip_heads import dense_clip

    with pytest.raises(ModelError, match="grid-only"):
        export(load(timm.create_model("resnet18")), tmp_path)
    clip = network("vit_base_patch16_clip_224", num_classes=20)
    for format in ("timm", "hf"):
        with pytest.raises(ModelError, match="is a DenseClip"):
            export(dense_clip(clip, "maskclip"), tmp_path, format=format)


# --- around it ------------------------------------------------------------------------------


def test_without_transformers_we_read_it_ourselves(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = export(cured_dinov2(), tmp_path, format="hf")
    assert done.reader == "clearvit" and "not installed" in done.notes[0]
    assert len(done.checks) == 2 and done.difference <= 1e-5


def test_preprocessing_goes_along(tmp_path):
    export(dinov2(), tmp_path, format="hf")
    ours = load(f"hf:{tmp_path}").preprocessing
    assert ours == dinov2().preprocessing
    processor = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert processor["size"] == {"height": 70, "width": 70} and processor["resample"] == 3
    assert transformers.AutoImageProcessor.from_pretrained(tmp_path).size["height"] == 70


@pytest.mark.parametrize("format", ["timm", "hf"])
def test_the_printed_code_runs(format, tmp_path):
    done = export(cured_dinov2(), tmp_path, format=format)
    names = {}
    exec(done.loading, names)
    assert names["patches"].shape == (1, 25, 48)
    assert "behind the class token and 3 registers" in done.loading
    lines = done.loading.replace(str(tmp_path), "").splitlines()
    guard = [line for line in lines if "do not match here" in line]  # of a broken torchvision
    assert "clearvit" not in "\n".join(line for line in lines if line not in guard)


def test_the_command(tmp_path):
    folder = save(cured_dinov2(), tmp_path / "cured")
    options = ["export", f"dir:{folder}", "--format", "hf", "--out", str(tmp_path / "hf")]
    done = CliRunner().invoke(app, [*options, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["reader"] == "transformers" and result["difference"] <= 1e-5
    assert [check["size"] for check in result["checks"]] == [[70, 70], [28, 56]]
    printed = CliRunner().invoke(app, options).stdout
    exec(printed, {})  # comments and code


def test_the_command_passes_errors_on(tmp_path):
    folder = save(load(tiny_network(reg_tokens=2, no_embed_class=True)), tmp_path / "m")
    line = ["export", f"dir:{folder}", "--format", "hf", "--out", str(tmp_path / "hf")]
    done = CliRunner().invoke(app, line)
    assert isinstance(done.exception, ModelError) and "format='timm'" in str(done.exception)


def test_the_demo_model_with_registers(demo_backbone, tmp_path):
    """End to end on real weights; the table is made for 112 px only to keep the test short."""
    done = export(load(demo_backbone, size=112), tmp_path / "plain", format="hf")
    assert done.checks[0].size == (112, 112) and done.checks[0].relative <= 2e-5
    again = load(f"hf:{tmp_path / 'plain'}", positions="bicubic-antialias")
    cured = with_registers(again, torch.randn(4, 384) * 0.05)
    done = export(cured, tmp_path / "cured", format="hf")
    assert [check.size for check in done.checks] == [(112, 112), (56, 84)]
    assert max(check.relative for check in done.checks) <= 2e-5
