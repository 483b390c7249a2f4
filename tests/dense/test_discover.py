import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save_backbone
from clearvit.dense.choose import Likeness, choose_features
from clearvit.dense.discover import discover
from clearvit.dense.discovery import overlaps
from clearvit.dense.draw import COLOURS, draw_boxes
from clearvit.errors import ImageError, ModelError
from clearvit.report.figure import save_figure
from tests.cli.test_cli import invoke
from tests.conftest import tiny_network
from tests.dense.test_voc import thing, voc_folder


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(img_size=64))


@pytest.fixture
def photos():
    generator = np.random.default_rng(0)
    sizes = [(60, 80), (90, 50), (64, 64)]
    return [
        Image.fromarray(generator.integers(0, 255, (*s, 3), dtype=np.uint8), "RGB") for s in sizes
    ]


@pytest.mark.parametrize("method", ["ours", "lost", "tokencut"])
@pytest.mark.filterwarnings("ignore:.*mean nothing")
def test_boxes_lie_in_the_original_pictures(backbone, photos, method):
    found = discover(backbone, photos, method=method)
    assert [one.size for one in found] == [(60, 80), (90, 50), (64, 64)]
    for one in found:
        assert one.masks.shape == (1, 8, 8) and len(one.boxes) == len(one.scores) == 1
        x0, y0, x1, y1 = one.boxes[0]
        assert 0 <= x0 < x1 <= one.size[1] and 0 <= y0 < y1 <= one.size[0]
        cells = one.masks[0].any(0).nonzero()
        assert x0 == cells.min() * one.size[1] / 8 and x1 == (cells.max() + 1) * one.size[1] / 8


def test_results_do_not_depend_on_the_batch_and_no_hook_stays(backbone, photos):
    one, three = (discover(backbone, photos, batch=n, objects=2) for n in (1, 3))
    assert [f.boxes for f in one] == [f.boxes for f in three]
    assert not any(module._forward_pre_hooks for module in backbone.network.modules())
    single = discover(backbone, photos)
    assert [f.boxes[0] for f in one] == [f.boxes[0] for f in single]


def test_a_tensor_of_pixels_is_used_as_it_is(backbone):
    found = discover(backbone, torch.randn(2, 3, 64, 48))
    assert [one.name for one in found] == ["image-000000", "image-000001"]
    assert found[0].size == (64, 48) and found[0].masks.shape == (1, 8, 6)


def test_bad_pictures_are_skipped_and_listed(backbone, photos, tmp_path):
    photos[0].save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 images were skipped: b\.jpg"):
        found = discover(backbone, tmp_path)
    assert [one.name for one in found] == ["a.png"]
    assert [bad.name for bad in found.skipped] == ["b.jpg"]
    (tmp_path / "a.png").unlink()
    with pytest.raises(ImageError, match=r"none of 1 images can be read: b\.jpg"):
        discover(backbone, tmp_path)


def test_a_centred_crop_is_put_back_into_the_picture(photos):
    from dataclasses import replace

    backbone = load(tiny_network(img_size=64))
    backbone.preprocessing = replace(backbone.preprocessing, fit="crop")
    (found,) = discover(backbone, photos[0])
    assert found.shown == (10, 0, 70, 60)
    assert 10 <= found.boxes[0][0] < found.boxes[0][2] <= 70


def test_a_grid_backbone_offers_its_tokens(photos):
    import timm

    grid = load(timm.create_model("resnet18", num_classes=0))
    found = discover(grid, photos[:1], size=128)
    assert found[0].masks.shape == (1, 4, 4)
    with pytest.raises(ModelError, match="only its final tokens"):
        discover(grid, photos, features="key")
    assert choose_features(grid, photos).features == ("token",)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "lots"}, "Closest: lost"),
        ({"features": "keys"}, "Closest: key"),
        ({"features": ()}, "at least one feature"),
        ({"method": "lost", "features": ("key", "value")}, "exactly one"),
        ({"method": "tokencut", "layer": (0, 1)}, "exactly one"),
        ({"method": "lost", "objects": 2}, "finds just one"),
        ({"objects": 0}, "at least 1"),
        ({"layer": 9}, "blocks 0 to 2"),
    ],
)
def test_wrong_options_name_the_remedy(backbone, photos, options, word):
    with pytest.raises(ModelError, match=word):
        discover(backbone, photos, **options)


def test_void_answers_are_told_once(backbone):
    black = [Image.new("RGB", (64, 64))] * 2
    sick = load(tiny_network(img_size=64))
    with torch.no_grad():
        sick.network.pos_embed.zero_()
    with pytest.warns(UserWarning) as notes:
        found = discover(sick, black, method="lost")
    assert all(one.degenerate for one in found)
    assert ["in 2 of 2 images" in str(note.message) for note in notes] == [True]


def test_likeness_is_the_mean_correlation_over_pairs():
    matrices = torch.rand(4, 5, 5)
    seen = Likeness()
    for matrix in matrices:
        seen.add(matrix)
    table = np.corrcoef(matrices.flatten(1).numpy())
    assert seen.mean() == pytest.approx(table[~np.eye(4, dtype=bool)].mean(), abs=1e-5)


def test_the_choice_keeps_the_features_least_bound_to_places(backbone, photos):
    choice = choose_features(backbone, photos)
    least = min(choice.shares, key=choice.shares.__getitem__)
    most = max(choice.shares, key=choice.shares.__getitem__)
    assert choice.features[0] == least and most not in choice.features
    with pytest.raises(ImageError, match="at least two"):
        choose_features(backbone, photos[:1])


def test_boxes_are_drawn_in_their_places(backbone, photos, tmp_path):
    found = discover(backbone, photos, objects=2)
    figure = draw_boxes(list(zip(photos, found, strict=True)), title="t", per_row=2)
    for axes, one in zip(figure.axes, found, strict=False):
        drawn = [patch for patch in axes.patches if patch.get_linewidth() < 3]
        assert len(drawn) == len(one.boxes)
        height, width = one.size
        left, upper = drawn[0].get_xy()
        assert (left * width, upper * height) == pytest.approx(one.boxes[0][:2])
    assert len(set(COLOURS)) == len(COLOURS)
    path = save_figure(figure, tmp_path / "a.png")
    assert Image.open(path).width == 1600


def test_the_command_writes_boxes_pictures_and_corloc(backbone, tmp_path):
    model = f"dir:{save_backbone(backbone, tmp_path / 'model')}"
    voc = voc_folder(tmp_path / "voc", {"a": thing(1, 1, 40, 30), "b": thing(1, 1, 2, 2), "c": ""})
    done = invoke("discover", model, voc, "--out", tmp_path / "out", "--objects", 2, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "out/boxes.json").read_text("utf-8"))
    assert [one["name"] for one in report["images"]] == ["a", "b"]
    assert [bad["name"] for bad in report["skipped"]] == ["c"]
    right = overlaps(report["images"][0]["boxes"][0], [[0, 0, 40, 30]])[0] >= 0.5
    assert report["corloc"] == 50.0 * right  # no box is as small as that of b
    assert (tmp_path / "out/a.png").exists() and (tmp_path / "out/b.png").exists()


def test_the_command_on_plain_photos(backbone, photos, tmp_path):
    model = f"dir:{save_backbone(backbone, tmp_path / 'model')}"
    (tmp_path / "in").mkdir()
    for i, photo in enumerate(photos):
        photo.save(tmp_path / "in" / f"{i}.png")
    options = ("--out", tmp_path / "out", "--no-draw", "--features", "auto", "--size", "64x80")
    done = invoke("discover", model, tmp_path / "in", *options)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "out/boxes.json")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["boxes.json"]


def test_the_cat_is_found_with_real_weights(demo_backbone):
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        pytest.skip("scikit-image is not installed")
    cat = Path(spec.origin).parent / "data" / "chelsea.png"
    (ours,) = discover(demo_backbone, cat, size=224)
    assert overlaps(ours.boxes[0], [[40, 0, 370, 300]])[0] > 0.5  # its head, by eye
    with pytest.warns(UserWarning, match="'lost' could not tell patches apart in 1 of 1"):
        (lost,) = discover(demo_backbone, cat, size=224, method="lost")
    assert lost.boxes[0] == (0, 0, 451, 300)
