import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.cures.positional import found_rates, remove_position
from clearvit.errors import ImageError
from tests.helpers.photos import soft_photos


def test_a_patch_is_found_where_it_is():
    whole = torch.eye(18).reshape(2, 9, 18)
    truth = torch.stack([torch.arange(9) // 3, torch.arange(9) % 3], 1).double().expand(2, 9, 2)
    assert found_rates(whole, whole, truth, (3, 3)).tolist() == [1, 1]
    swapped = whole.flip(0)  # every patch looks like one of the other image
    assert found_rates(whole, swapped, truth, (3, 3)).tolist() == [0, 0]
    far = truth + torch.tensor([2.0, 0.0])
    assert found_rates(whole, whole, far, (3, 3)).tolist() == [0, 0]


def test_without_images_the_default_is_taken_and_said(tiny):
    edited = remove_position(tiny, directions=4)
    report = edited.report
    assert report.directions == 4 and "not checked" in str(report)
    assert edited.output is not None and tiny.output is None


def test_the_choice_is_made_and_checked_on_different_images(tiny, tmp_path):
    soft_photos(tmp_path, 10)
    first = remove_position(tiny, tmp_path)
    report, same = first.report, remove_position(tiny, tmp_path).report
    assert report == same and report.images == 10 and set(report.found) >= {0, 5}
    assert (first.output is None) == (report.directions == 0)
    with pytest.raises(ImageError, match="at least 8"):
        remove_position(tiny, [str(p) for p in sorted(tmp_path.iterdir())[:3]])


def test_position_hides_the_content_of_the_demo_model(demo_backbone, tmp_path):
    """Real weights: removing directions of position helps crops find their image."""
    data = pytest.importorskip("skimage.data")
    names = ("chelsea", "coffee", "rocket", "astronaut", "cat", "immunohistochemistry")
    for number, name in enumerate(names * 2):
        try:
            pixels = getattr(data, name)()
        except (AttributeError, OSError):
            continue
        half = pixels.shape[1] // 2
        part = pixels[:, :half] if number < len(names) else pixels[:, half:]
        Image.fromarray(np.ascontiguousarray(part[..., :3])).save(tmp_path / f"{number}.png")
    report = remove_position(demo_backbone, tmp_path, size=224).report
    assert max(report.found[20], report.found[5]) > report.found[0]


def test_the_verb_reports_and_saves(tiny, tmp_path):
    soft_photos(tmp_path, 10)
    cured = cv.cure(tiny, tmp_path, method="positional", out=tmp_path / "out")
    assert cured.report.to_json()["directions"] == cured.report.directions
    pixels = torch.randn(1, 3, 32, 32)
    again = cv.load(f"dir:{tmp_path / 'out'}")
    assert torch.allclose(again.tokens(pixels).patches, cured.tokens(pixels).patches, atol=1e-6)
