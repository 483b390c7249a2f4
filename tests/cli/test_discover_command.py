import json

import pytest

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.discovery.boxes import best_iou
from tests.conftest import tiny_network
from tests.helpers.commands import invoke
from tests.helpers.made_data import voc_folder, voc_object
from tests.helpers.photos import soft_photos


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return f"dir:{save(load(tiny_network(img_size=64)), tmp_path_factory.mktemp('model') / 'm')}"


def test_the_command_writes_boxes_drawings_and_corloc(model, tmp_path):
    objects = {"a": voc_object(1, 1, 40, 30), "b": voc_object(1, 1, 2, 2), "c": ""}
    voc = voc_folder(tmp_path / "voc", objects)
    done = invoke("discover", model, voc, "--out", tmp_path / "out", "--objects", 2, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    written = json.loads((tmp_path / "out/boxes.json").read_text("utf-8"))
    assert written == {"made_by": "clearvit", **report}
    assert [one["name"] for one in report["images"]] == ["a", "b"]
    assert [bad["name"] for bad in report["skipped"]] == ["c"]
    right = best_iou(report["images"][0]["boxes"][0], [[0, 0, 40, 30]]) >= 0.5
    assert report["corloc"] == 50.0 * right  # no box is as small as that of b
    assert (tmp_path / "out/a.png").exists() and (tmp_path / "out/b.png").exists()


def test_the_command_on_plain_images(model, tmp_path):
    (tmp_path / "in").mkdir()
    soft_photos(tmp_path / "in", 3)
    options = ("--out", tmp_path / "out", "--no-draw", "--features", "auto", "--size", "64x80")
    done = invoke("discover", model, tmp_path / "in", *options)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "out/boxes.json")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["boxes.json"]
