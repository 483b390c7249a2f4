"""Image and text towers give what open_clip gives."""

import builtins
import json

import pytest
import torch

import clearvit.backbones.guarded_timm  # noqa: F401 - before open_clip imports torchvision

open_clip = pytest.importorskip("open_clip")

from safetensors.torch import load_file, save_file  # noqa: E402

from clearvit.backbones.load import load  # noqa: E402
from clearvit.backbones.saved import load_saved, save  # noqa: E402
from clearvit.errors import ModelError  # noqa: E402
from tests.helpers.openclip_models import TEXT, TIMM, VIT, VITS, known_models, saved_model  # noqa: E402

TOLERANCE = 1e-5
TEXTS = ["a cat", "two dogs on a boat"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with known_models(tmp_path_factory.mktemp("configs")) as folder:
        yield folder


@pytest.fixture(scope="module", params=[*VITS, *TIMM])
def case(request, folder):
    model, name = saved_model(request.param, folder)
    return request.param, model, load(name)


def pixels_for(model):
    return torch.randn(2, 3, *model.visual.image_size)


def test_image_embeddings(case):
    _, model, backbone = case
    pixels = pixels_for(model)
    with torch.no_grad():
        expected = model.encode_image(pixels, normalize=True)
    assert (backbone.embed(pixels) - expected).abs().max() <= TOLERANCE


def test_text_embeddings(case):
    name, model, backbone = case
    tokens = open_clip.get_tokenizer(f"tiny-{name}")(TEXTS)
    with torch.no_grad():
        expected = model.encode_text(tokens, normalize=True)
    ours = backbone.text.encode(TEXTS)
    assert (ours - expected).abs().max() <= TOLERANCE
    assert torch.allclose(ours.norm(dim=-1), torch.ones(2))
    assert not list(backbone.text.model.visual.parameters())


def test_logits(case):
    _, model, backbone = case
    text = backbone.text
    assert text.logit_scale == pytest.approx(model.logit_scale.exp().item())
    if model.logit_bias is None:
        assert text.logit_bias is None
    else:
        assert text.logit_bias == pytest.approx(model.logit_bias.item())


def test_tokens(case):
    """Tokens are the output of the last block after ln_post, or of timm's own norm."""
    name, model, backbone = case
    pixels = pixels_for(model)
    tokens = backbone.tokens(pixels)
    ours = torch.cat([tokens.prefix, tokens.patches], dim=1)
    with torch.no_grad():
        if name in TIMM:
            theirs = model.visual.trunk.forward_features(pixels)
        else:
            visual = model.visual
            theirs = visual.transformer(visual._embeds(pixels))
            if name != "norm-after-average":  # there open_clip norms the average, not the tokens
                theirs = visual.ln_post(theirs)
    assert (ours - theirs).abs().max() <= TOLERANCE


def test_another_size(folder):
    """open_clip resizes positions when it loads, we when we run: by the same rule."""
    _, name = saved_model("plain", folder)
    weights = name.removeprefix("openclip:tiny-plain/")
    larger = open_clip.create_model("tiny-plain", pretrained=weights, force_image_size=(56, 40))
    pixels = torch.randn(2, 3, 56, 40)
    with torch.no_grad():
        expected = larger.eval().encode_image(pixels, normalize=True)
    assert (load(name).embed(pixels) - expected).abs().max() <= TOLERANCE


def test_saving_keeps_the_tokens(case, tmp_path):
    _, model, backbone = case
    again = load_saved(save(backbone, tmp_path))
    assert again.fingerprint() == backbone.fingerprint()
    pixels = pixels_for(model)
    assert torch.equal(again.tokens(pixels).patches, backbone.tokens(pixels).patches)
    assert torch.equal(again._project(pixels), backbone._project(pixels))


def test_preprocessing_is_open_clips(case):
    _, model, backbone = case
    theirs = model.visual.preprocess_cfg
    assert backbone.preprocessing.mean == tuple(theirs["mean"])
    assert backbone.preprocessing.std == tuple(theirs["std"])
    assert backbone.preprocessing.size == tuple(model.visual.image_size)
    assert backbone.preprocessing.interpolation == theirs["interpolation"]


def test_convolutional_tower_is_a_grid(folder):
    model, name = saved_model("timm-grid", folder)
    backbone = load(name)
    pixels = pixels_for(model)
    with torch.no_grad():
        expected = model.encode_image(pixels, normalize=True)
        grid = model.visual.trunk.forward_features(pixels)
    assert (backbone.embed(pixels) - expected).abs().max() <= TOLERANCE
    assert torch.equal(backbone.tokens(pixels).map, grid)
    assert backbone.text.encode(TEXTS).shape == (2, 24)


def test_tag_decides_about_quick_gelu(folder, monkeypatch):
    """`ViT-B-16/openai` needs QuickGELU, which the architecture does not say."""
    _, name = saved_model("plain", folder)
    path = name.removeprefix("openclip:tiny-plain/")
    registry = open_clip.pretrained._PRETRAINED
    monkeypatch.setitem(registry, "tiny-plain", {"openai": {"url": "x", "quick_gelu": True}})
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda *a, **k: path)
    quick = load("openclip:tiny-plain/openai")
    assert quick.blueprint.arguments["act_layer"] == "quick_gelu"
    reference = open_clip.create_model("tiny-plain", pretrained=path, force_quick_gelu=True).eval()
    pixels = pixels_for(reference)
    with torch.no_grad():
        expected = reference.encode_image(pixels, normalize=True)
    assert (quick.embed(pixels) - expected).abs().max() <= TOLERANCE


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B-166/openai", r"no model 'ViT-B-166'. Closest: .*ViT-B-16"),
        ("ViT-B-16/openaii", r"no weights 'openaii'; there are: openai,.* Closest: openai"),
        ("ViT-B-16", r"lacks the weights.*there are: openai,"),
        ("ViT-B-16/", r"lacks the weights"),
        ("ViT-B-16//no/where.safetensors", r"'/no/where.safetensors' does not exist"),
        ("ViT-B-16/rel/where.safetensors", r"'rel/where.safetensors' does not exist"),
        ("ViT-B-16//some/file.pt", r"never loads. Convert it"),
        ("ViT-B-16/some/file.bin", r"never loads. Convert it"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ModelError, match=message):
        load(f"openclip:{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm-mlp", "projects with 'mlp'"),
        ("coca", r"pools with attention of its own \(CoCa\)"),
        ("resnet", "has a ModifiedResNet as image tower"),
        ("cosine", "has blocks of the kind CustomResidualAttentionBlock"),
    ],
)
def test_towers_that_timm_cannot_hold(folder, name, message):
    with pytest.raises(ModelError, match=message):
        load(saved_model(name, folder)[1])


def test_weights_that_do_not_fit_are_listed(folder, tmp_path):
    _, name = saved_model("plain", folder)
    state = load_file(name.removeprefix("openclip:tiny-plain/"))
    del state["visual.ln_post.bias"]
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match=r"could not load(.|\n)*visual.ln_post.bias"):
        load(f"openclip:tiny-plain/{tmp_path}/x.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="could not load"):
        load(f"openclip:tiny-plain/{tmp_path}/x.safetensors")


def test_tokenizer_that_cannot_be_fetched(folder, monkeypatch):
    def refuse(name):
        raise OSError("no connection")

    backbone = load(saved_model("plain", folder)[1])
    monkeypatch.setattr(open_clip, "get_tokenizer", refuse)
    with pytest.raises(ModelError, match=r"tokenizer of 'tiny-plain' cannot be fetched"):
        backbone.text.encode(TEXTS)


def test_missing_library_names_the_extra(monkeypatch):
    plain = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "open_clip":
            raise ImportError(name)
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModelError, match=r"pip install 'clearvit\[openclip\]'"):
        load("openclip:ViT-B-16/openai")


@pytest.mark.parametrize(
    "change",
    [
        {"vision_cfg": {**VIT, "timm_model_name": "hf-hub:evil/x"}},
        {"vision_cfg": {**VIT, "timm_model_name": "local-dir:/tmp"}},
        {"vision_cfg": {**VIT, "timm_model_pretrained": True}},
        {"vision_cfg": {**VIT, "layers": 10**9}},
        {"vision_cfg": {**VIT, "width": 65536, "layers": 500}},
        {"vision_cfg": {**VIT, "patch_size": 0}},
        {"text_cfg": {**TEXT, "hf_model_name": "evil/x"}},
        {"text_cfg": {**TEXT, "tokenizer_kwargs": {"trust_remote_code": True}}},
        {"text_cfg": {**TEXT, "vocab_size": -1}},
        {"embed_dim": 0},
        {"multimodal_cfg": {}},
        {"vision_cfg": []},
    ],
    ids=str,
)
def test_a_folder_of_a_stranger_is_checked_before_anything_is_built(tmp_path, monkeypatch, change):
    monkeypatch.setattr(open_clip, "create_model", lambda *a, **o: pytest.fail("built"))
    config = {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT, **change}
    content = {"model_cfg": config, "preprocess_cfg": {"size": 32}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    (tmp_path / "open_clip_model.safetensors").write_bytes(bytes(2_000_000))
    with pytest.raises(ModelError, match=r"open_clip_config\.json"):
        load(f"openclip:{tmp_path}")
