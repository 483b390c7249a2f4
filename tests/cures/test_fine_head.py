"""The fit of the head for fine tokens: on tiny models, and end to end on real weights."""

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.output import FINE_HEAD, blur_twice, upsample
from clearvit.cures import fine_head
from clearvit.cures.config import CureConfig
from clearvit.cures.fine_head import FineReport, FineTeacher, HeadSums
from clearvit.errors import ImageError, ModelError, OptionError, StoreError
from clearvit.images import find_images
from clearvit.stats import Interval
from tests.conftest import tiny_network
from tests.helpers.made_training import same
from tests.helpers.photos import soft_photos

QUICK = {"views": 8, "size": 32, "precision": "no"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 32)


def test_the_head_comes_nearer_to_fine_views_than_upsampling(photos, tmp_path):
    tiny = load(tiny_network())
    before = {key: tensor.clone() for key, tensor in tiny.network.state_dict().items()}
    fine = cv.cure(tiny, photos, method="fine", out=tmp_path / "out", **QUICK)
    report = fine.report
    assert isinstance(report, FineReport) and report.kept and report.gain.low > 0
    assert report.after < report.before
    assert same(before, tiny.network.state_dict()) and tiny.fine is None
    assert json.dumps(report.to_json()) and "head of" in str(report)
    again = load(f"dir:{tmp_path / 'out'}")
    pixels = torch.randn(1, 3, 32, 48)
    assert torch.allclose(again.tokens(pixels).patches, fine.tokens(pixels).patches, atol=1e-6)
    assert torch.equal(fine.tokens(pixels).prefix, tiny.tokens(pixels).prefix)
    finished = cv.cure(tiny, photos, method="fine", out=tmp_path / "out", **QUICK)
    assert same(finished.fine.state_dict(), fine.fine.state_dict())
    assert finished.report == report


def test_the_reported_distance_is_the_distance(photos, tmp_path):
    tiny = load(tiny_network())
    fine = cv.cure(tiny, photos, method="fine", out=tmp_path / "out", **QUICK)
    config = CureConfig(method="fine", **QUICK)
    cache = FineTeacher(tiny, config).cache(find_images(photos), tmp_path / "out/fine")
    held = [n for n in range(32) if n * 8 // 32 != (n - 1) * 8 // 32][1::2]
    found = []
    for number in held:
        target = cache[number]
        pixels = tiny.preprocessing.normalize(target.image)[None]
        tokens = fine.tokens(pixels).patches[0]
        found.append(1 - F.cosine_similarity(tokens, target.patches.float(), dim=1).mean().item())
    assert fine.report.after == pytest.approx(sum(found) / len(found), abs=1e-5)


def test_the_fit_is_the_least_squares_solution():
    """Against numpy's solver on a design matrix written out, without penalty."""
    channels, grid, rng = 2, (6, 7), torch.Generator().manual_seed(0)
    sums, rows, wanted = HeadSums(channels), [], []
    for _ in range(4):
        maps = torch.randn(1, channels, *grid, generator=rng)
        target = torch.randn(1, channels, 12, 14, generator=rng)
        sums.add(maps, target)
        blurred = torch.cat([upsample(part) for part in blur_twice(maps)], 1)
        missing = target - upsample(maps)
        for y in range(12):
            for x in range(14):
                cell = 2 * (y % 2) + x % 2
                row = torch.zeros(6 * channels + 4)
                row[cell * channels : (cell + 1) * channels] = maps[0, :, y // 2, x // 2]
                row[4 * channels : 6 * channels] = blurred[0, :, y, x]
                row[6 * channels + cell] = 1
                rows.append(row.numpy())
                wanted.append(missing[0, :, y, x].numpy())
    solved = np.linalg.lstsq(np.stack(rows).astype(float), np.stack(wanted).astype(float))[0]
    head = sums.solve(0.0)
    assert np.allclose(head.around.weight.numpy().T, solved[8:12], atol=1e-4)
    split = head.split.weight.numpy().reshape(channels, 4, channels)  # (out, cell, in)
    assert np.allclose(split.transpose(1, 2, 0), solved[:8].reshape(4, 2, 2), atol=1e-4)
    assert np.allclose(head.split.bias.numpy().reshape(channels, 4).T, solved[12:], atol=1e-4)


def test_a_killed_run_ends_with_the_same_bits(photos, tmp_path, monkeypatch):
    def fit(out):
        return cv.cure(load(tiny_network()), photos, method="fine", out=out, **QUICK)

    class Killed(BaseException):
        """Not caught by anything but the test."""

    whole, target = fit(tmp_path / "whole"), FineTeacher.target

    for stop in (3, 20):

        def killed(self, image, number, stop=stop):
            if number == stop:
                raise Killed
            return target(self, image, number)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(FineTeacher, "target", killed)
            fit(tmp_path / "killed")
    assert same(fit(tmp_path / "killed").fine.state_dict(), whole.fine.state_dict())
    files = [load_file(tmp_path / name / FINE_HEAD) for name in ("whole", "killed")]
    assert same(*files)


def test_without_a_gain_there_is_no_head(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(fine_head, "PENALTIES", (1e12,))  # which leaves nothing but upsampling
    tiny = load(tiny_network())
    result = cv.cure(tiny, photos, method="fine", out=tmp_path / "out", **QUICK)
    assert result.fine is None and not result.report.kept
    assert "no better than upsampling" in str(result.report)
    assert not (tmp_path / "out" / FINE_HEAD).exists()
    pixels = torch.randn(1, 3, 32, 32)
    again = load(f"dir:{tmp_path / 'out'}").tokens(pixels)
    assert again.scale == 1 and torch.equal(again.patches, tiny.tokens(pixels).patches)


def test_a_head_that_is_farther_away_says_more_not_minus_less():
    gain = Interval(-0.02, -0.03, -0.01)
    report = FineReport(False, 0.1, 0.12, gain, 0.1, {}, 10, 0.01, 12)
    assert "20 % more" in str(report) and "less" not in str(report)


def test_few_images_get_a_head_that_is_shrunk(tmp_path):
    """Found by use: with 24 photos every penalty overfitted, and upsampling won."""
    few, network = soft_photos(tmp_path, 12), tiny_network(embed_dim=96)
    report = cv.cure(load(network), few, method="fine", **QUICK).report
    weak = [report.distances[str(one)] for one in (1e-3, 1e-2, 1e-1)]
    assert report.penalty >= 1 and report.distances[str(report.penalty)] < min(weak)


def test_a_cured_model_gets_its_head_after_the_cure(photos, tmp_path):
    options = {**QUICK, "scale": 2, "registers": 2, "epochs": 1, "batch": 4, "keep_anyway": True}
    cured = cv.cure(load(tiny_network()), photos, out=tmp_path / "out", **options)
    assert cured.prefix_names.count("register") == 2 and cured.scale == 2
    assert cured.report.cure.registers == 2
    card = (tmp_path / "out/README.md").read_text()
    assert card.count(FINE_HEAD) == int(cured.scale == 2)
    assert f"{cured.report.parameters:,} parameters" in card
    assert card.index(FINE_HEAD) < card.index("## License") < card.index("## Citation")
    again = load(f"dir:{tmp_path / 'out'}")
    assert again.fingerprint() == cured.fingerprint()
    finished = cv.cure(load(tiny_network()), photos, out=tmp_path / "out", **options)
    assert finished.fingerprint() == cured.fingerprint()


def test_a_head_goes_onto_a_projected_model(photos):
    cured = cv.cure(load(tiny_network()), photos, method="positional", scale=2, **QUICK)
    assert cured.tokens(torch.randn(1, 3, 32, 32)).scale == 2


def test_targets_are_the_fine_views_of_the_image(photos, tmp_path):
    tiny, config = load(tiny_network()), CureConfig(method="fine", seed=5, **QUICK)
    teacher = FineTeacher(tiny, config)
    cache = teacher.cache(find_images(photos), tmp_path)
    target = teacher.target(cache.read(3), 3)
    pixels = tiny.preprocessing.normalize(target.image)[None]
    expected = cv.denoise(tiny, pixels, views=8, scale=2, seed=8)
    assert teacher.grid == expected.grid == (8, 8)
    assert torch.allclose(target.patches.float(), expected.patches[0], atol=1e-2)


@pytest.mark.parametrize("scale", [3, 4])
def test_other_scales_are_refused(tiny, photos, scale):
    with pytest.raises(OptionError, match="2 times as fine"):
        cv.cure(tiny, photos, scale=scale)


def test_what_cannot_have_a_head_is_refused_before_any_work(tiny, photos, tmp_path):
    with pytest.raises(OptionError, match="2 times as fine"):
        cv.cure(tiny, photos, method="fine", scale=1)
    with pytest.raises(OptionError, match="at least 4"):
        cv.cure(tiny, photos, method="fine", views=3)
    with pytest.raises(ModelError, match="scale is 2"):
        cv.cure(load(tiny_network(patch_size=1, img_size=8)), photos, method="fine")
    few = find_images(photos)[:5]
    with pytest.raises(ImageError, match="at least 12"):
        cv.cure(tiny, [one.source for one in few], method="fine", **QUICK)
    with pytest.raises(ModelError, match="grid-only"):
        cv.cure(load(timm.create_model("resnet10t")), photos, scale=2)
    with pytest.raises(ModelError, match="pruned"):
        cv.cure(cv.prune(tiny, keep=0.5), photos, method="fine")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        cv.cure(tiny, photos, method="fine", out=tmp_path)


def test_every_option_of_the_plan_is_one(tiny, photos):
    plan = fine_head.plan_of(tiny, find_images(photos), CureConfig(**QUICK))
    known = {field.name for field in dataclasses.fields(CureConfig)} | {"bf16"}
    assert set(plan) <= known | {"model", "fingerprint", "images", "listing"}


def test_real_tokens_come_nearer_to_fine_views(demo_backbone, tmp_path, monkeypatch):
    """Crops of two photographs, small and few: enough to beat upsampling on crops left out."""
    data = pytest.importorskip("skimage.data")
    for name in ("astronaut", "coffee"):
        photo = Image.fromarray(getattr(data, name)())
        for number in range(10):
            left, top = 40 * (number % 5), 60 * (number // 5)
            photo.crop((left, top, left + 200, top + 200)).save(tmp_path / f"{name}{number}.png")
    monkeypatch.setattr(fine_head, "PENALTIES", (0.1,))  # one solution of 2308 equations is enough
    options = {"method": "fine", "size": 112, "views": 4, "precision": "no"}
    fine = cv.cure(demo_backbone, tmp_path, **options)
    assert fine.report.kept and fine.report.after < 0.95 * fine.report.before
    assert fine.report.fraction < 0.05
    assert fine.tokens(tmp_path / "coffee3.png", size=112).grid == (16, 16)
