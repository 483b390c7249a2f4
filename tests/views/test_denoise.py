import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ModelError, OptionError
from clearvit.views import DenoisedBackbone, Views, all_views, refine_by_image
from clearvit.views.config import DenoiseConfig
from tests.conftest import tiny_network
from tests.helpers import GOLDEN
from tests.helpers.photos import soft_photos

DENOISED = GOLDEN / "phreg_denoised.npz"


@pytest.mark.parametrize(
    "name", ["astronaut_224", "chelsea_224", pytest.param("chelsea_518", marks=pytest.mark.slow)]
)
def test_denoised_tokens_are_those_of_the_published_code(demo_backbone, name):
    import skimage

    golden = np.load(DENOISED)
    side = 14 * int(golden[f"{name}_settings"][0])
    photo = Image.open(Path(skimage.__file__).parent / "data" / f"{name.split('_')[0]}.png")
    photo = photo.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    views = Views(
        14 * torch.from_numpy(golden[f"{name}_offsets"]),
        torch.from_numpy(golden[f"{name}_flips"]).bool(),
    )
    backbone = load("demo", positions="bicubic-offset")
    tokens = cv.denoise(backbone, photo, views=views, size=side, batch=4)
    assert tokens.counts.tolist() == golden[f"{name}_counts"].tolist()
    rows = torch.from_numpy(golden[f"{name}_rows"]).long()
    difference = (tokens.patches[0, rows] - torch.from_numpy(golden[f"{name}_denoised"])).abs()
    assert difference.max() <= 5e-4 and difference.mean() <= 1e-4


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(img_size=64, reg_tokens=2, no_embed_class=True))


def test_one_untouched_view_is_the_plain_forward(backbone):
    pixels = torch.randn(2, 3, 64, 48)
    untouched = Views(torch.zeros(1, 2).long(), torch.zeros(1).bool())
    clean, plain = cv.denoise(backbone, pixels, views=untouched), backbone.tokens(pixels)
    assert torch.allclose(clean.patches, plain.patches, atol=1e-5)
    assert torch.allclose(clean.prefix, plain.prefix, atol=1e-5)
    assert clean.registers.shape == (2, 2, 24)
    assert (clean.counts == 1).all() and clean.variance.abs().max() < 1e-6


def test_mean_count_and_variance_are_those_of_the_formula(backbone):
    pixels = torch.randn(1, 3, 64, 64)
    views = Views(8 * torch.tensor([[0, 0], [1, -2], [-1, 0]]), torch.tensor([False, True, False]))
    tokens = cv.denoise(backbone, pixels, views=views)
    white = (1 - torch.tensor(backbone.preprocessing.mean)) / torch.tensor(
        backbone.preprocessing.std
    )
    seen = [[[] for _ in range(8)] for _ in range(8)]
    for (dy, dx), flip in zip((views.offsets // 8).tolist(), views.flips.tolist(), strict=True):
        view = white[None, :, None, None].expand(1, 3, 64, 64).clone()
        for y in range(64):
            for x in range(64):
                if 0 <= y - 8 * dy < 64 and 0 <= x - 8 * dx < 64:
                    view[..., y - 8 * dy, x - 8 * dx] = pixels[..., y, x]
        view = view.flip(3) if flip else view
        grid = backbone.tokens(view).patches[0].reshape(8, 8, -1)
        grid = grid.flip(1) if flip else grid
        for y in range(8):
            for x in range(8):
                if 0 <= y - dy < 8 and 0 <= x - dx < 8:
                    seen[y][x].append(grid[y - dy, x - dx])
    for y in range(8):
        for x in range(8):
            stack = torch.stack(seen[y][x])
            assert int(tokens.counts[y, x]) == len(stack)
            assert torch.allclose(tokens.patches[0, 8 * y + x], stack.mean(0), atol=1e-5)
            expected = stack.var(0, correction=0).mean()
            assert tokens.variance[0, 8 * y + x] == pytest.approx(float(expected), abs=1e-5)


def test_chunks_and_batches_change_nothing(backbone):
    pixels = torch.randn(3, 3, 64, 40)
    whole = cv.denoise(backbone, pixels, views=6, batch=16)
    small = cv.denoise(backbone, pixels, views=6, batch=2)
    assert torch.allclose(whole.patches, small.patches, atol=1e-5)
    assert torch.allclose(whole.variance, small.variance, atol=1e-5)
    assert torch.equal(whole.counts, small.counts) and whole.counts.shape == (8, 5)
    assert whole.variance.shape == (3, 40)


def test_more_views_come_closer_to_all_views(backbone):
    pixels = torch.randn(2, 3, 64, 64)
    everything = cv.denoise(backbone, pixels, views=all_views((8, 8), patch=(8, 8))).patches

    def distance(count, sampler):
        clean = cv.denoise(backbone, pixels, views=count, sampler=sampler).patches
        return 1 - torch.cosine_similarity(clean, everything, dim=-1).mean()

    assert distance(10, "whole") < distance(2, "whole")
    assert distance(10, "official") < distance(2, "official")


def test_views_that_miss_a_patch_are_refused(backbone):
    views = Views(torch.tensor([[8, 0]]), torch.tensor([False]))
    with pytest.raises(ModelError, match="8 of 64 cells"):
        cv.denoise(backbone, torch.randn(1, 3, 64, 64), views=views)
    with pytest.raises(OptionError, match="Closest: official"):
        cv.denoise(backbone, torch.randn(1, 3, 64, 64), sampler="offical")


def test_grid_backbones_can_be_denoised():
    import timm

    backbone = load(timm.create_model("resnet18"))
    tokens = cv.denoise(backbone, torch.randn(1, 3, 256, 256), views=4)
    assert tokens.patches.shape == (1, 64, 512) and tokens.prefix.shape == (1, 0, 512)
    fine = cv.denoise(backbone, torch.randn(1, 3, 128, 128), views=4, scale=2)
    assert fine.grid == (8, 8) and fine.patches.isfinite().all()


@pytest.mark.parametrize(("scale", "count"), [(1, 10), (2, 4), (4, 16)])
def test_the_grid_is_as_fine_as_asked(backbone, scale, count):
    tokens = cv.denoise(backbone, torch.randn(2, 3, 64, 40), views=count, scale=scale)
    assert tokens.grid == (8 * scale, 5 * scale) and tokens.scale == scale
    assert tokens.map.shape == (2, 24, 8 * scale, 5 * scale)
    assert tokens.counts.shape == tokens.grid and tokens.variance.shape == (2, 40 * scale**2)


def test_what_cannot_be_done_is_said_before_any_pass(backbone, monkeypatch):
    monkeypatch.setattr(backbone, "forward", lambda *_: pytest.fail("the work has begun"))
    pixels = torch.randn(1, 3, 64, 64)
    with pytest.raises(ModelError, match="allows 1 to 8"):
        cv.denoise(backbone, pixels, scale=9)
    with pytest.raises(ModelError, match="at least 16 views"):
        cv.denoise(backbone, pixels, views=10, scale=4)
    with pytest.raises(ModelError, match="too small"):
        cv.denoise(backbone, torch.randn(1, 3, 8, 64))


def test_a_denoised_backbone_is_a_backbone_with_a_finer_grid(backbone):
    fine = DenoisedBackbone(backbone, DenoiseConfig(views=5, scale=2, batch=3))
    pixels = torch.randn(3, 3, 64, 40)
    tokens = fine.tokens(pixels)
    assert tokens.grid == fine.grid_of((64, 40)) == (16, 10)
    expected = cv.denoise(backbone, pixels, views=5, scale=2)
    assert torch.allclose(tokens.patches, expected.patches, atol=1e-5)
    other = DenoisedBackbone(backbone, DenoiseConfig(views=6, scale=2))
    assert fine.fingerprint() != other.fingerprint()
    with pytest.raises(ModelError, match="final tokens only"):
        fine.tokens(pixels, layers=[0])


def test_a_denoised_backbone_is_saved_with_its_views(backbone, tmp_path):
    fine = cv.cure(backbone, method="denoise", views=4, out=tmp_path / "fine")
    again = cv.load(f"dir:{tmp_path / 'fine'}")
    assert isinstance(again, DenoisedBackbone) and again.config == fine.config
    assert again.name == f"dir:{tmp_path / 'fine'}"  # as it stands in the next command
    pixels = torch.randn(1, 3, 64, 40)
    assert torch.allclose(again.tokens(pixels).patches, fine.tokens(pixels).patches, atol=1e-6)
    marker = tmp_path / "fine" / "denoised.json"
    whole = json.loads(marker.read_text())
    many, odd = (
        {**whole, "views": {**whole["views"], k: v}} for k, v in (("views", "x"), ("y", 1))
    )
    for broken in ({}, {"format": 1}, {"format": 1, "views": []}, many, odd):
        marker.write_text(json.dumps(broken))
        with pytest.raises(ModelError):
            cv.load(f"dir:{tmp_path / 'fine'}")
    fine.save(tmp_path / "other")
    cv.save(backbone, tmp_path / "other")  # another model in its place is not denoised
    assert not isinstance(cv.load(f"dir:{tmp_path / 'other'}"), DenoisedBackbone)


def test_what_cannot_be_saved_with_its_views_is_said(backbone, tmp_path):
    import timm

    for model in (load(timm.create_model("resnet18")), cv.prune(backbone, keep=0.7)):
        with pytest.raises(ModelError, match="cannot be saved"):
            DenoisedBackbone(model, DenoiseConfig(views=4)).save(tmp_path / "out")


def test_tokens_follow_the_edges_of_the_image(backbone):
    pixels = torch.zeros(1, 3, 64, 64)
    pixels[..., 30:] = 2.0  # an edge inside a patch
    plain = cv.denoise(backbone, pixels, views=4, scale=2)
    guided = cv.denoise(backbone, pixels, views=4, scale=2, refine="image")
    assert guided.grid == plain.grid and guided.patches.shape == plain.patches.shape
    color = (pixels * torch.tensor(backbone.preprocessing.std)[:, None, None]).clamp(0, 1)
    color = color + torch.tensor(backbone.preprocessing.mean)[:, None, None]
    expected = refine_by_image(plain.map, color.clamp(0, 1), plain.grid)
    assert torch.allclose(guided.map, expected, atol=1e-5)


def test_verbs_that_need_blocks_name_the_model_behind_the_views(tmp_path):
    backbone = load(tiny_network())
    fine = cv.cure(backbone, method="denoise", views=4, scale=2)
    with pytest.raises(ModelError, match="averages views"):
        cv.prune(fine, keep=0.7)
    with pytest.raises(ModelError, match=rf"averages views.*'{re.escape(backbone.name)}'"):
        cv.diagnose(fine, soft_photos(tmp_path, 2))


def test_a_model_that_could_never_run_is_not_written(tmp_path):
    with pytest.raises(ModelError, match="too few for scale 2"):
        cv.cure(load(tiny_network()), method="denoise", views=3, scale=2, out=tmp_path / "fine")
    assert not (tmp_path / "fine").exists()
