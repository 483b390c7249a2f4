import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.cures.positional import choose_and_check, edit_output, found_rates
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
    edited = edit_output(tiny, directions=4)
    report = edited.report
    assert report.directions == 4 and "not checked" in str(report)
    assert edited.output is not None and tiny.output is None


def test_the_choice_is_made_and_checked_on_different_images(tiny, tmp_path):
    soft_photos(tmp_path, 10)
    first = edit_output(tiny, tmp_path)
    report, same = first.report, edit_output(tiny, tmp_path).report
    assert report == same and report.images == 10
    assert set(report.found) >= {0, 5} and report.smoothing_gain is None
    assert (first.output is None) == (report.directions == 0)
    with pytest.raises(ImageError, match="at least 8"):
        edit_output(tiny, [str(p) for p in sorted(tmp_path.iterdir())[:3]])


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
    report = edit_output(demo_backbone, tmp_path, size=224).report
    assert max(report.found[20], report.found[5]) > report.found[0]


def test_each_half_checks_what_the_other_chooses():
    """A candidate that is best by chance on each half is worse on the other, and is not kept."""
    even, odd = torch.tensor([1.0, 0.0] * 8), torch.tensor([0.0, 1.0] * 8)
    base = torch.full((16,), 0.6)
    kept, gain = choose_and_check({0: base, 5: even, 20: odd}, seed=0)
    assert kept == 0 and gain.mean == pytest.approx(-0.6)
    kept, gain = choose_and_check({0: base, 5: base + 0.1, 20: base + 0.05}, seed=0)
    assert kept == 5 and gain.low == pytest.approx(0.1)


def test_noise_chooses_nothing(tiny, tmp_path):
    """Crops of noise find their place no better with any step: the tokens stay as they were."""
    rng = np.random.default_rng(0)
    for number in range(8):
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    edited = edit_output(tiny, tmp_path, smoothing=True)
    assert edited.output is None and not edited.report.directions and not edited.report.smooth
    assert edited.report.gain.low <= 0 and edited.report.smoothing_gain.low <= 0


def test_a_step_that_helps_is_chosen_and_one_that_does_not_is_dropped(tiny, tmp_path, monkeypatch):
    """Tokens that are noise around a smooth field: averaging neighbors helps, projection cannot."""
    soft_photos(tmp_path, 12)
    size, width = 12 * tiny.patch[0], tiny.width // 2
    grid = tiny.grid_of((size, size))
    count, rng = grid[0] * grid[1], torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij")
    truth = torch.stack([rows, columns], -1).reshape(1, count, 2).double().expand(12, count, 2)
    angles = torch.rand(12, 1, width, generator=rng) * 6 + truth.float().sum(-1, keepdim=True) * 0.4
    angles = angles + truth[..., :1].float() * torch.linspace(0.1, 0.5, width)
    clean = torch.cat([angles.sin(), angles.cos()], 2)
    noisy = [clean + 0.8 * torch.randn(clean.shape, generator=rng) for _ in range(2)]
    monkeypatch.setattr("clearvit.cures.positional.crop_tokens", lambda *_: (*noisy, truth))
    report = edit_output(tiny, tmp_path, smoothing=True, size=size).report
    assert report.smooth and report.directions == 0 and report.smoothing_gain.low > 0


def test_instant_needs_images(tiny):
    with pytest.raises(ImageError, match="at least 8"):
        edit_output(tiny, smoothing=True)


def test_the_verb_reports_and_saves(tiny, tmp_path):
    soft_photos(tmp_path, 10)
    cured = cv.cure(tiny, tmp_path, method="positional", out=tmp_path / "out")
    assert cured.report.to_json()["directions"] == cured.report.directions
    pixels = torch.randn(1, 3, 32, 32)
    again = cv.load(f"dir:{tmp_path / 'out'}")
    assert torch.allclose(again.tokens(pixels).patches, cured.tokens(pixels).patches, atol=1e-6)
