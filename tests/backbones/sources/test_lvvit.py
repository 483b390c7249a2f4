"""LV-ViT: official names give the official tokens and logits, and every seam of a ViT is there."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import clearvit as cv
from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.saved import save
from clearvit.backbones.sources.lvvit import load_lvvit
from clearvit.errors import ModelError
from clearvit.pruning import macs
from tests.helpers.golden_lvvit import official_outputs, official_weights, save_checkpoint


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("lvvit") / "plain.safetensors"
    return cv.load(f"lvvit:lvvit_s@{save_checkpoint(path, predictors=False)}")


def test_tokens_and_logits_are_the_official_ones(plain):
    official = official_outputs()
    tokens = plain.tokens(official["input"])
    network, whole = plain.network, torch.cat([tokens.prefix, tokens.patches], 1)
    with torch.no_grad():
        found = {
            "cls_logits": network.class_logits(whole),
            "aux_logits": network.patch_logits(tokens.patches),
            "logits": network.forward_head(whole),
        }
        assert torch.allclose(network(official["input"]), found["logits"], atol=1e-5)
    for name, value in found.items():
        assert (value - official[f"dense_{name}"]).abs().max() <= 1e-4


def in_numpy(state, x):
    """One block of LV-ViT from its formula: x (T, C) -> (T, C), heads of 8 channels."""
    w = {k.removeprefix("blocks.0."): v.double().numpy() for k, v in state.items() if "ks.0." in k}

    def norm(y, name):
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        return y * w[f"{name}.weight"] + w[f"{name}.bias"]

    q, k, v = np.split(norm(x, "norm1") @ w["attn.qkv.weight"].T, 3, axis=-1)
    out = []
    for head in range(3):
        part = slice(8 * head, 8 * head + 8)
        logits = q[:, part] @ k[:, part].T / np.sqrt(8)
        attention = np.exp(logits - logits.max(-1, keepdims=True))
        out.append(attention / attention.sum(-1, keepdims=True) @ v[:, part])
    x = x + (np.concatenate(out, -1) @ w["attn.proj.weight"].T + w["attn.proj.bias"]) / 2
    hidden = norm(x, "norm2") @ w["mlp.fc1.weight"].T + w["mlp.fc1.bias"]
    hidden = torch.nn.functional.gelu(torch.from_numpy(hidden)).numpy()
    return x + (hidden @ w["mlp.fc2.weight"].T + w["mlp.fc2.bias"]) / 2


def test_a_block_is_its_formula(plain):
    x = torch.randn(1, 7, 24)
    with torch.no_grad():
        found = plain.network.blocks[0](x)[0]
    assert np.abs(found.numpy() - in_numpy(official_weights(), x[0].double().numpy())).max() < 1e-5


def test_every_seam_of_a_vit_is_there(plain):
    pixels = torch.randn(2, 3, 96, 64)
    tokens = plain.tokens(pixels, layers=[0, -1], capture=("key", "attention"), norm=False)
    assert tokens.grid == (6, 4) and plain.patch == (16, 16) and plain.prefix_names == ("class",)
    assert tokens.layers[-1].patches.shape == (2, 24, 24)
    assert tokens.key[0].shape == (2, 3, 25, 8)
    assert torch.allclose(tokens.attention[-1].sum(-1), torch.ones(2, 3, 25), atol=1e-5)
    alone = plain.tokens(pixels[1:], norm=False)
    assert torch.allclose(alone.patches[0], tokens.patches[1], atol=1e-5)
    pruned = cv.prune(plain, keep=0.5)
    assert pruned.plan.stages == (2, 4, 6)
    assert pruned.tokens(pixels).kept.sum(1).tolist() == [3, 3]
    same = cv.prune(plain, keep=1.0).tokens(pixels)
    assert torch.equal(same.patches, plain.tokens(pixels).patches)


def test_saved_models_load_again_and_give_timm_nothing_it_cannot_build(plain, tmp_path):
    pixels = torch.randn(1, 3, 112, 112)
    folder = save(plain, tmp_path / "plain")
    assert not (folder / "config.json").exists()
    again = cv.load(f"dir:{folder}")
    assert torch.equal(again.tokens(pixels).patches, plain.tokens(pixels).patches)
    pruned = cv.prune(plain, keep=0.6, out=tmp_path / "pruned")
    loaded = cv.load(f"dir:{tmp_path / 'pruned'}")
    assert torch.equal(loaded.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert loaded.fingerprint() == pruned.fingerprint()
    with pytest.raises(ModelError, match="timm has no lvvit_s"):
        cv.export(plain, tmp_path / "timm", format="timm")


def test_the_two_sizes_have_the_published_parameters_and_macs():
    published = {"lvvit_s": (26_151_824, 16), "lvvit_m": (55_830_544, 20)}
    for name, (parameters, depth) in published.items():
        with torch.device("meta"):
            network = Blueprint(name, {"num_classes": 1000}).build()
        assert sum(p.numel() for p in network.parameters()) == parameters
        assert len(network.blocks) == depth


def test_macs_count_the_stem_and_the_classifier_of_patches():
    small = Blueprint("lvvit_s", {"img_size": [224, 224]}).build()
    backbone = cv.load(small)
    assert macs(backbone).dense / 1e9 == pytest.approx(6.551, abs=2e-3)
    pruned = macs(cv.prune(backbone, keep=0.7))
    assert pruned.network / 1e9 == pytest.approx(4.547, abs=2e-3)
    assert cv.prune(backbone, keep=0.7).plan.stages == (4, 8, 12)


def test_pickles_are_read_as_tensors_only(tmp_path, plain):
    state = official_weights(predictors=False)
    torch.save(state, tmp_path / "upstream.pth.tar")
    torch.save({"model": state}, tmp_path / "nested.pth")
    for name in ("upstream.pth.tar", "nested.pth"):
        found = load_lvvit(f"lvvit_s@{tmp_path / name}")
        assert found.network.state_dict().keys() == plain.network.state_dict().keys()


class Evil:
    def __reduce__(self):
        return (print, ("code of a checkpoint ran",))


def test_bad_names_and_files_are_refused(tmp_path, capsys):
    with pytest.raises(ModelError, match="neither lvvit_s nor lvvit_m"):
        cv.load("lvvit:lvvit_x@file.pth")
    with pytest.raises(ModelError, match="lvvit:lvvit_m@FILE"):
        cv.load("lvvit:lvvit_m")
    with pytest.raises(ModelError, match="there is no checkpoint"):
        cv.load(f"lvvit:lvvit_s@{tmp_path / 'none.pth'}")
    torch.save({"cls_token": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ModelError):
        cv.load(f"lvvit:lvvit_s@{tmp_path / 'evil.pth'}")
    assert "ran" not in capsys.readouterr().out
    path = save_checkpoint(tmp_path / "pruned.safetensors")
    with pytest.raises(ModelError, match="import_dynamicvit"):
        cv.load(f"lvvit:lvvit_s@{path}")
    path = save_checkpoint(tmp_path / "small.safetensors", predictors=False)
    with pytest.raises(ModelError, match="holds lvvit_s, not lvvit_m"):
        cv.load(f"lvvit:lvvit_m@{path}")
    state = official_weights(predictors=False)
    for change, message in (
        ({"pos_embed": torch.zeros(3)}, "is no LV-ViT"),
        ({"cls_token": torch.full_like(state["cls_token"], torch.nan)}, "NaN or infinity"),
        ({"blocks.900000000.x": torch.zeros(1)}, "holds lvvit_m"),
        ({"patch_embed.conv2.weight": torch.zeros(64, 64, 5, 5)}, "conv2.weight is"),
    ):
        save_file(state | change, tmp_path / "odd.safetensors")
        with pytest.raises(ModelError, match=message):
            cv.load(f"lvvit:lvvit_s@{tmp_path / 'odd.safetensors'}")
    save_file(state | {"blocks.900000000.x": torch.zeros(1)}, tmp_path / "deep.safetensors")
    with pytest.raises(ModelError, match="depth"):
        cv.load(f"lvvit:lvvit_m@{tmp_path / 'deep.safetensors'}")
    del state["patch_embed.bn1.running_var"]
    save_file(state, tmp_path / "less.safetensors")
    with pytest.raises(ModelError, match=r"missing patch_embed\.bn1\.running_var"):
        cv.load(f"lvvit:lvvit_s@{tmp_path / 'less.safetensors'}")


def test_a_saved_blueprint_of_a_stranger_is_checked(plain, tmp_path):
    folder = save(plain, tmp_path / "model")
    config = json.loads((folder / "clearvit.json").read_text())
    for change in ({"patch_size": 8}, {"depth": 10**6}, {"pretrained": True}):
        changed = json.loads(json.dumps(config))
        changed["blueprint"]["arguments"] |= change
        (folder / "clearvit.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError):
            cv.load(f"dir:{folder}")
