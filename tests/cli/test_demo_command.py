from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.errors import ImageError
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.pages import check


def test_the_demo_ends_with_one_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backbone = load(tiny_network(depth=4, img_size=224, patch_size=28))
    save(backbone, tmp_path / "model")
    (tmp_path / "mine").mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(14):
        pixels = (torch.rand(12, 16, 3, generator=generator) * 255).byte().numpy()
        image = Image.fromarray(pixels.astype(np.uint8)).resize((64, 48), Image.Resampling.BICUBIC)
        image.save(tmp_path / "mine" / f"{number:02d}.png")
    done = invoke("demo", "--quick", "--model", "dir:model", "--images", "mine", "--out", "demo")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "demo" / "report.html").read_text("utf-8")
    assert (
        check(text).headings.count(2) == 10
    )  # a cover, and a chapter for each command that leaves a page
    for verb in ("diagnose", "look", "cure", "compare", "discover", "segment", "search", "bench"):
        assert f"clearvit {verb} " in text
    assert "What did not work" in text and "gap to the average of" in text
    assert 'type="range"' in text  # before and after
    assert len(list((tmp_path / "demo" / "slides").glob("*.png"))) >= 8


def test_the_demo_asks_for_the_search_extra_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = invoke("demo", "--quick", "--model", "dir:model", "--images", "mine")
    assert "pip install 'clearvit[demo]'" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_the_demo_refuses_a_device_that_is_not_there_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("demo", "--quick", "--device", "abc")
    assert "device is 'abc'" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [((), "demo"), (("--quick",), "demo-quick"), (("--images", "x"), "demo-own")],
)
def test_demos_of_other_images_or_pace_have_other_folders(arguments, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def stop(out, images, **options):
        asked.append(out)
        raise ImageError("enough")

    monkeypatch.setattr("clearvit.demo.photos.prepare_photos", stop)
    assert invoke("demo", *arguments).exit_code == 1
    assert asked == [Path(folder) / "images"]
