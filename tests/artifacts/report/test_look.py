import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.artifacts.report import look as room
from clearvit.artifacts.report.look import (
    default_blocks,
    look,
    observe,
    panels,
    write_look_page,
)
from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError
from clearvit.images import find_images
from clearvit.report.pca import PCA
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoised import DenoisedBackbone
from tests.conftest import tiny_network


def photo(seed=0, size=(60, 40)):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(("a.jpg", "b.png", "sub/a.png")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(i).save(path)
    return tmp_path / "photos"


def titles(backbone, **options):
    (seen,) = observe(backbone, find_images(photo()), **options)
    pca = PCA.fit(seen.map.flatten(1).T)
    return [[p.title for p in row] for row in panels(seen, pca, backbone.depth)]


def test_one_picture_per_image_in_their_order(tiny, folder, tmp_path):
    out = tmp_path / "out"
    paths = look(tiny, folder, out=out)
    assert paths == [out / "a.png", out / "b.png", out / "a-2.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.width == 1600
    first = paths[0].read_bytes()
    look(tiny, folder, out=out)
    assert paths[0].read_bytes() == first


def test_photos_are_never_overwritten(tiny, folder):
    before = {p: p.read_bytes() for p in folder.rglob("*.*")}
    paths = look(tiny, folder, out=folder)
    assert not set(paths) & set(before)
    assert {p: p.read_bytes() for p in before} == before


def test_bad_images_are_skipped_with_a_warning(tiny, folder, tmp_path):
    (folder / "bad.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"skipped bad\.jpg: not an image"):
        assert len(look(tiny, folder, out=tmp_path / "out")) == 3
    with pytest.warns(UserWarning), pytest.raises(ImageError, match="none of the images"):
        look(tiny, folder / "bad.jpg", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_more_images_than_the_colours_are_fitted_on(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "COMMON", 2)
    monkeypatch.setattr(room, "TOKENS", 20)
    images = [photo(i) for i in range(5)]
    paths = look(tiny, images, out=tmp_path)
    assert [p.name for p in paths] == [f"image-{i:06d}.png" for i in range(5)]


def test_panels_of_a_vit(tiny):
    assert titles(tiny) == [
        ["photo", "patch tokens", "attention of the class token"],
        [f"norms, block {i} of 0..2" for i in (1, 2)],
    ]
    assert titles(tiny, layers=[-3])[1] == ["norms, block 0 of 0..2"]


def test_panels_of_registers():
    rows = titles(load(tiny_network(reg_tokens=6)))
    assert rows[0][-1] == "attention of the class token"
    registers = [f"attention of register {i}" for i in range(1, 7)]
    assert rows[-2:] == [registers[:3], registers[3:]]


def test_without_class_token_its_panel_is_left_out(tmp_path):
    backbone = load(tiny_network(class_token=False, global_pool="avg"))
    assert titles(backbone)[0] == ["photo", "patch tokens"]
    assert len(look(backbone, photo(), out=tmp_path)) == 1


def test_grid_only_backbone(tmp_path):
    import timm

    backbone = load(timm.create_model("test_resnet", num_classes=0))
    assert titles(backbone, size=64) == [["photo", "patch tokens"]]
    assert len(look(backbone, photo(), out=tmp_path, size=64)) == 1


def test_what_is_seen_is_what_the_backbone_computes(tiny):
    size = (48, 24)
    (seen,) = observe(tiny, find_images(photo()), size=size, layers=[0, -1])
    expected = tiny.tokens(photo(), size=size)
    inner = tiny.tokens(
        photo(), size=size, layers=[0, 2], norm=False, capture=("prefix_attention",)
    )
    assert seen.map.shape == (24, 6, 3)
    torch.testing.assert_close(seen.map, expected.map[0])
    for block in (0, 2):
        norms = inner.layers[block].patches[0].norm(dim=-1).reshape(6, 3)
        np.testing.assert_allclose(seen.norms[block], norms.numpy(), rtol=1e-5)
    attention = inner.prefix_attention[2][0].mean(dim=0)
    torch.testing.assert_close(seen.attention, attention)
    torch.testing.assert_close(seen.attention.sum(dim=1), torch.ones(1))
    assert seen.photo.shape == (40, 60, 3) and seen.aspect == pytest.approx(40 / 60)


def test_cropped_photos_show_the_part_that_is_seen(tiny):
    import copy
    import dataclasses

    backbone = copy.copy(tiny)
    backbone.preprocessing = dataclasses.replace(tiny.preprocessing, fit="crop")
    (seen,) = observe(backbone, find_images(photo()))
    assert seen.photo.shape == (32, 32, 3) and seen.aspect == 1
    centre = np.asarray(photo().resize((32, 32), Image.BICUBIC, box=(10, 0, 50, 40)), dtype=int)
    assert np.abs(seen.photo.astype(int) - centre).max() <= 1


def test_default_blocks():
    assert default_blocks(12) == [3, 6, 8, 10, 11]
    assert default_blocks(1) == [0]
    for depth in range(1, 50):
        blocks = default_blocks(depth)
        assert blocks[-1] == depth - 1 and len(blocks) <= 5 and blocks[0] >= 0


def test_block_that_does_not_exist_is_an_error(tiny, tmp_path):
    with pytest.raises(ModelError, match="blocks 0 to 2"):
        look(tiny, photo(), out=tmp_path, layers=(7,))


def test_blocks_without_plain_attention_still_show_their_tokens():
    network = tiny_network()
    for block in network.blocks:
        block.attn.__class__ = type("Strange", (torch.nn.Module,), {"forward": lambda s, x, **k: x})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert titles(load(network))[0] == ["photo", "patch tokens"]


def test_artifacts_of_the_demo_model_show(demo_backbone):
    """Late blocks hold tokens above twice the median norm; the output of the last does not."""
    skimage_data = pytest.importorskip("skimage.data")
    coffee = Image.fromarray(skimage_data.coffee())
    (seen,) = observe(demo_backbone, find_images(coffee), layers=[10, 11])
    ratio = {block: norms / np.median(norms) for block, norms in seen.norms.items()}
    assert 5 <= (ratio[10] > 2).sum() <= 30
    assert ratio[11].max() < 1.5


def test_finer_tokens_stand_beside_the_models_own(tiny, tmp_path):
    fine = DenoisedBackbone(tiny, DenoiseConfig(views=4, scale=2))
    shown = titles(tiny, fine=fine)
    assert shown[0][:3] == ["photo", "patch tokens", "gathered from views"]
    (seen,) = observe(tiny, find_images(photo()), fine=fine)
    assert seen.fine.shape == (tiny.width, *(2 * side for side in seen.map.shape[1:]))
    assert len(look(tiny, photo(), out=tmp_path, scale=2)) == 1
    with pytest.raises(ModelError, match="at least 4 views"):
        look(tiny, photo(), out=tmp_path, scale=2, views=3)
    page = write_look_page(tmp_path / "look.html", sorted(tmp_path.glob("*.png")), "tiny")
    assert page.read_text().count("data:image/png") == 1
