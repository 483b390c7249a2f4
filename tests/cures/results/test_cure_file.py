"""A cure in a small file: the same model elsewhere, and nothing else from strangers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import clearvit as cv
from clearvit.backbones.clip_heads import DenseClip
from clearvit.cures.results import cure_file
from clearvit.cures.results.cure_report import CureReport
from clearvit.errors import ModelError
from tests.conftest import tiny_network
from tests.helpers.photos import soft_photos

OPTIONS = {"epochs": 2, "rank": 2, "views": 4, "held_out": 0.2, "lr": 1e-2, "keep_anyway": True}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 15)


@pytest.fixture(scope="module", params=[0, 3])
def made(request, tiny, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("cured") / "out"
    return cv.cure(tiny, photos, out=out, registers=request.param, **OPTIONS), out


def test_the_file_gives_the_trained_model(tiny, made):
    cured, out = made
    pixels = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    raw = tiny.tokens(pixels).patches
    for applied in (
        cv.apply(tiny, out / "cure.safetensors"),
        cv.apply(tiny.resized(48), str(out)),
        cv.load(tiny, cure=out),
        cv.load(f"dir:{out}"),
    ):
        found = applied.tokens(pixels)
        assert torch.equal(found.patches, cured.tokens(pixels).patches)
        assert torch.equal(found.prefix, cured.tokens(pixels).prefix)
    assert torch.equal(tiny.tokens(pixels).patches, raw)  # the base is left as it was
    applied = cv.apply(tiny, out)
    assert applied.report == cured.report and isinstance(applied.report, CureReport)
    size = (out / "cure.safetensors").stat().st_size
    assert size < 0.5 * (out / "model.safetensors").stat().st_size
    cv.save(applied, out.parent / "saved")
    again = cv.load(f"dir:{out.parent / 'saved'}")
    assert torch.equal(again.tokens(pixels).patches, cured.tokens(pixels).patches)


def test_the_file_says_what_it_was_made_of(tiny, made):
    with safe_open(made[1] / "cure.safetensors", framework="pt") as file:
        facts = file.metadata()
    assert facts["base_name"] == tiny.name
    assert json.loads(facts["recipe"])["rank"] == 2
    assert json.loads(facts["report"])["best_epoch"] == made[0].report.best_epoch


def test_the_metadata_is_in_order_so_equal_cures_have_equal_bytes(made, tmp_path):
    content = (made[1] / "cure.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])
    shuffled = tmp_path / "cure.safetensors"
    for _ in range(8):  # the library takes another order each time
        tensors = load_file(made[1] / "cure.safetensors")
        save_file(tensors, shuffled, metadata=header["__metadata__"])
        cure_file.sort_metadata(shuffled)
        assert shuffled.read_bytes() == content


def test_another_base_is_refused(made):
    other = cv.load(tiny_network())
    with torch.no_grad():
        other.network.blocks[0].mlp.fc1.weight[0, 0] += 1e-3
    with pytest.raises(ModelError, match="has other weights; load the model that it was made for"):
        cv.apply(other, made[1])
    cured = cv.load(f"dir:{made[1]}")
    with pytest.raises(ModelError, match="other weights"):  # nor twice
        cv.apply(cured, made[1])


def test_whole_matrices_give_no_file(tiny, photos, tmp_path):
    options = {**OPTIONS, "unfreeze": ("all",), "lr": 1e-4}
    cv.cure(tiny, photos, out=tmp_path / "out", **options)
    assert not (tmp_path / "out" / "cure.safetensors").exists()


def test_a_cure_of_clip_keeps_its_head(photos, tmp_path):
    clip = cv.load(tiny_network(num_classes=20, global_pool="token", pre_norm=True))
    clip.blueprint.arguments["pre_norm"] = True  # which timm's ViT does not tell
    cured = cv.cure(clip, photos, out=tmp_path, features="text", registers=0, **OPTIONS)
    applied = cv.apply(clip, tmp_path)
    pixels = torch.randn(1, 3, 32, 32)
    assert isinstance(applied, DenseClip) and applied.head == "maskclip"
    assert torch.equal(applied.tokens(pixels).patches, cured.tokens(pixels).patches)


WEIGHT = "blocks.1.mlp.fc1.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({f"up/{WEIGHT}": torch.zeros(96, 25)}, "does not fit"),
        ({f"down/{WEIGHT}": torch.zeros(2, 25)}, "does not fit"),
        ({f"up/{WEIGHT}": torch.zeros(96, 0), f"down/{WEIGHT}": torch.zeros(0, 24)}, "not fit"),
        ({"up/blocks.9.mlp.fc1.weight": torch.zeros(96, 2)}, "does not fit"),
        ({"difference/pos_embed": torch.zeros(1, 9999, 24)}, "does not fit"),
        ({"difference/../../etc/passwd": torch.zeros(3)}, "does not fit"),
        ({"something": torch.zeros(3)}, "does not fit"),
        ({"registers": torch.zeros(100_000, 24)}, "100000 registers"),
        ({"registers": torch.zeros(3, 25)}, "does not fit"),
        ({"difference/norm.bias": torch.zeros(24, dtype=torch.int64)}, "holds I64"),
        ({"difference/norm.bias": torch.full((24,), torch.nan)}, "not finite"),
    ],
)
def test_tensors_of_strangers_are_checked_against_the_base(tiny, made, tmp_path, change, words):
    path, facts = made[1] / "cure.safetensors", None
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    save_file({**load_file(path), **change}, tmp_path / "bad.safetensors", metadata=facts)
    with pytest.raises(ModelError, match=words):
        cv.apply(tiny, tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "no cure file"),
        ({"clearvit": "cure", "format": "99"}, "another version"),
        ({"clearvit": "cure", "format": "1"}, "report cannot be read"),
        ({"clearvit": "cure", "format": "1", "report": "[1]", "base": ""}, "report cannot be read"),
        ({"clearvit": "cure", "format": "1", "report": "[" * 50_000}, "report cannot be read"),
        ({"clearvit": "cure", "format": "1", "report": "x" * 3_000_000}, "too much text"),
    ],
)
def test_facts_of_strangers_are_checked(tiny, tmp_path, facts, words):
    save_file({"a": torch.zeros(1)}, tmp_path / "bad.safetensors", metadata=facts)
    with pytest.raises(ModelError, match=words):
        cv.apply(tiny, tmp_path / "bad.safetensors")


def test_what_is_no_file_at_all(tiny, made, tmp_path, monkeypatch):
    (tmp_path / "text.safetensors").write_text("not a tensor")
    with pytest.raises(ModelError, match="cannot read"):
        cv.apply(tiny, tmp_path / "text.safetensors")
    half = (made[1] / "cure.safetensors").read_bytes()[:-100]
    (tmp_path / "half.safetensors").write_bytes(half)
    with pytest.raises(ModelError, match="cannot read"):
        cv.apply(tiny, tmp_path / "half.safetensors")
    with pytest.raises(ModelError, match="is not there"):
        cv.apply(tiny, tmp_path / "none.safetensors")
    with pytest.raises(ModelError, match="is not there"):
        cv.apply(tiny, "x" * 5000)
    monkeypatch.setattr(cure_file, "MAX_BYTES", 1000)
    with pytest.raises(ModelError, match="are not read"):
        cv.apply(tiny, made[1])


def test_a_shipped_cure_is_for_the_demo_model_only(tiny):
    with pytest.raises(ModelError, match="ships for 'demo' only"):
        cv.load(tiny, cure=True)


def test_the_shipped_cure_is_small_and_cures_the_demo_model():
    from clearvit.backbones.load import SHIPPED_CURE

    assert SHIPPED_CURE.stat().st_size <= 4_000_000
    cured = cv.load("demo", cure=True, size=56)
    assert cured.prefix_names.count("register") == 16
    assert cured.report.after < cured.report.before
    assert cured.tokens(torch.zeros(1, 3, 56, 56)).patches.isfinite().all()


FRESH = """
import sys, clearvit as cv
from safetensors.torch import load_file, save_file
cured, pixels = cv.load("demo", cure=True, size=56), load_file(sys.argv[1])["pixels"]
save_file({"tokens": cured.tokens(pixels).patches.contiguous()}, sys.argv[2])
"""


def test_a_fresh_interpreter_gives_the_tokens_of_the_shipped_cure(demo_backbone, tmp_path):
    from clearvit.backbones.load import SHIPPED_CURE

    pixels = torch.randn(2, 3, 56, 56)
    given, found = tmp_path / "pixels.safetensors", tmp_path / "tokens.safetensors"
    save_file({"pixels": pixels}, given)
    subprocess.run([sys.executable, "-c", FRESH, given, found], check=True)
    applied = cv.apply(demo_backbone, SHIPPED_CURE)
    assert cv.load("demo-cured").fingerprint() == applied.fingerprint()
    assert (applied.tokens(pixels).patches - load_file(found)["tokens"]).abs().max() < 1e-3


def test_the_wheel_takes_the_shipped_cure_along():
    """The build takes every file of the package that git does not ignore, and nothing is left out.

    A wheel built and looked into would take a download of the build system.
    """
    from clearvit.backbones.load import SHIPPED_CURE

    root = Path(__file__).parents[3]
    rules = (root / "pyproject.toml").read_text().partition("[tool.hatch.build")[2]
    assert rules.partition("\n[")[0] == '.targets.wheel]\npackages = ["src/clearvit"]\n'
    if not (root / ".git").exists():
        pytest.skip("not a clone")
    path = SHIPPED_CURE.resolve().relative_to(root)
    ignored = subprocess.run(["git", "check-ignore", "--no-index", "-q", path], cwd=root)
    assert ignored.returncode == 1
