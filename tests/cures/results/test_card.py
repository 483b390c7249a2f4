"""The card says what was done, and its code runs where there is no clearvit."""

import copy
import dataclasses
import re
import subprocess
import sys

import pytest
import timm
import torch
import yaml

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.backbones.sources.snippets import timm_code
from clearvit.cures.config import CureConfig
from clearvit.cures.registers import with_registers
from clearvit.cures.results.card import base_model, write_card
from clearvit.cures.results.cure_report import CureReport
from tests.conftest import randomised

CONFIG = CureConfig(registers=3, unfreeze=("last", "positions"), size=(56, 42), views=8)
REPORT = CureReport(0.0618, 0.0247, 0.9912, 2, (), registers=3, images=1200, skipped=())

# Of this interpreter: no clearvit, and the declarations a mismatched torchvision lacks.
FRESH = """
import importlib.abc, sys, torch

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "clearvit":
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
try:
    import torchvision
except RuntimeError:
    for name in [n for n in sys.modules if n.startswith("torchvision")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
try:
    import clearvit
except ImportError:
    pass
else:
    raise SystemExit("clearvit could be imported")
torch.manual_seed(0)
"""


@pytest.fixture(scope="module")
def cured():
    torch.manual_seed(0)
    options = {"img_size": 56, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 0}
    network = timm.create_model("vit_small_patch14_dinov2", dynamic_img_size=True, **options)
    backbone = with_registers(load(randomised(network)), torch.randn(3, 48))
    backbone.report = REPORT
    return backbone


@pytest.fixture
def folder(cured, tmp_path):
    return save(cured, tmp_path / "cured model")  # a space, as users have them


def test_the_printed_code_runs_without_clearvit(cured, folder, tmp_path):
    code = FRESH + timm_code("cured model", cured)
    code += "\ntorch.save(patches, 'patches.pt')\nassert 'clearvit' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    theirs = torch.load(tmp_path / "patches.pt", weights_only=True)
    ours = cured.tokens(torch.zeros(1, 3, 56, 56)).patches
    assert theirs.shape == (1, 16, 48) and torch.allclose(theirs, ours, atol=1e-6)


def test_front_matter(cured, folder):
    text = write_card(folder, cured, "demo", CONFIG).read_text()
    assert text.startswith("---\n")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "timm"
    assert front["base_model"] == "timm/vit_small_patch14_dinov2.lvd142m"
    assert "ph-reg" in front["tags"]


def test_the_card_says_what_was_done_and_found(cured, folder):
    text = write_card(folder, cured, "demo", CONFIG).read_text()
    for part in (
        "3 registers, last, positions",
        "| images | 1,200 |",
        "| size | 56 x 42 px |",
        "| views | 8 |",
        "| epochs | 2 |",
        "held-out images | 0.0618 | 0.0247 |",
        "1.0000 | 0.9912 |",
        "arXiv:2505.21501",
        "stay under its license",
        "For transformers",
        "clearvit export 'dir:cured model' --format hf --out 'cured model-hf'",
    ):
        assert part in text, part


def test_the_code_in_the_card_runs_beside_the_folder(cured, folder, monkeypatch):
    cured = copy.copy(cured)
    cured.report = dataclasses.replace(REPORT, before=None, after=None)
    text = write_card(folder, cured, "demo", CONFIG).read_text()
    assert "Before and after" not in text
    monkeypatch.chdir(folder.parent)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})


def test_transformers_is_named_only_where_it_can_hold_the_model(tiny, tmp_path):
    cured = with_registers(tiny, torch.randn(2, 24))
    cured.report = REPORT
    folder = save(cured, tmp_path / "cured")
    assert "For transformers" not in write_card(folder, cured, "demo", CONFIG).read_text()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("demo", "timm/vit_small_patch14_dinov2.lvd142m"),
        ("timm:vit_base_patch16_224.mae", "timm/vit_base_patch16_224.mae"),
        ("timm:hf-hub:someone/model", "someone/model"),
        ("timm:local-dir:some.where", None),
        ("timm:vit_base_patch16_224", None),  # whichever weights timm takes by default
        ("hf:facebook/dinov2-base", "facebook/dinov2-base"),
        ("hf:facebook/dinov2-base@main", "facebook/dinov2-base"),
        ("hf:./models/mine", None),
        ("hf:/models", None),
        ("openclip:ViT-B-16/openai", None),
        ("dir:cured", None),
        ("VisionTransformer", None),
    ],
)
def test_the_base_on_the_hub(name, found):
    assert base_model(name) == found
