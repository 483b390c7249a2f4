from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from clearvit import discover
from clearvit.backbones.load import load
from clearvit.discovery.boxes import best_iou
from clearvit.errors import ClearvitError, ImageError, OptionError
from tests.conftest import tiny_network


@pytest.mark.parametrize("method", ["consensus", "lost", "tokencut"])
@pytest.mark.filterwarnings("ignore:.*are meaningless")
def test_boxes_lie_in_the_original_images(backbone, photos, method):
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


def test_bad_images_are_skipped_and_listed(backbone, photos, tmp_path):
    photos[0].save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 images were skipped: b\.jpg"):
        found = discover(backbone, tmp_path)
    assert [one.name for one in found] == ["a.png"]
    assert [bad.name for bad in found.skipped] == ["b.jpg"]
    (tmp_path / "a.png").unlink()
    with pytest.raises(ImageError, match=r"none of 1 images can be read: b\.jpg"):
        discover(backbone, tmp_path)


def test_a_centred_crop_is_put_back_into_the_image(photos):
    from dataclasses import replace

    backbone = load(tiny_network(img_size=64))
    backbone.preprocessing = replace(backbone.preprocessing, fit="crop")
    (found,) = discover(backbone, photos[0])
    assert found.crop == (10, 0, 70, 60)
    assert 10 <= found.boxes[0][0] < found.boxes[0][2] <= 70


def test_a_grid_backbone_offers_its_tokens(photos):
    import timm

    grid = load(timm.create_model("resnet18", num_classes=0))
    found = discover(grid, photos[:1], size=128)
    assert found[0].masks.shape == (1, 4, 4)
    with pytest.raises(OptionError, match="only its final tokens"):
        discover(grid, photos, features="key")
    assert discover(grid, photos[:2], features="auto", size=128)[0].masks.shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "lots"}, "Closest: lost"),
        ({"features": "keys"}, "Closest: key"),
        ({"features": ("auto", "key")}, "auto stands alone"),
        ({"features": ()}, "at least one feature"),
        ({"method": "lost", "features": ("key", "value")}, "exactly one"),
        ({"method": "tokencut", "layers": (0, 1)}, "exactly one"),
        ({"method": "lost", "objects": 2}, "finds just one"),
        ({"objects": 0}, "at least 1"),
        ({"layers": 9}, "blocks 0 to 2"),
    ],
)
def test_wrong_options_name_the_remedy(backbone, photos, options, word):
    with pytest.raises(ClearvitError, match=word):
        discover(backbone, photos, **options)


def test_meaningless_boxes_warn_once(backbone):
    black = [Image.new("RGB", (64, 64))] * 2
    sick = load(tiny_network(img_size=64))
    with torch.no_grad():
        sick.network.pos_embed.zero_()
    with pytest.warns(UserWarning) as notes:
        found = discover(sick, black, method="lost")
    assert all(one.degenerate for one in found)
    assert ["of 2 of 2 images" in str(note.message) for note in notes] == [True]


def test_the_cat_is_found_with_real_weights(demo_backbone):
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        pytest.skip("scikit-image is not installed")
    cat = Path(spec.origin).parent / "data" / "chelsea.png"
    (found,) = discover(demo_backbone, cat, size=224)
    assert best_iou(found.boxes[0], [[40, 0, 370, 300]]) > 0.5  # its head, by eye
    with pytest.warns(UserWarning, match="'lost' could not separate the patches of 1 of 1"):
        (lost,) = discover(demo_backbone, cat, size=224, method="lost")
    assert lost.boxes[0] == (0, 0, 451, 300)
