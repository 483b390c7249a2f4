import errno
import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import clearvit.shards.extract as extract
from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError, StoreError
from clearvit.shards.config import TokenConfig
from clearvit.shards.extract import save_tokens
from clearvit.shards.read import open_tokens
from clearvit.views.denoise import denoise
from tests.conftest import tiny_network
from tests.helpers.photos import soft_photos

CONFIG = TokenConfig(batch=2, shard=4, layers=(0, -1), dtype="float32")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i in range(11):
        pixels = random.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)
        (folder / f"{i % 3}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i % 3}" / f"{i:02d}.png")
    (folder / "1" / "broken.jpg").write_bytes(b"not a picture")
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tokens_come_back_as_they_were(tiny, photos, tmp_path):
    store = save_tokens(tiny, photos, out=tmp_path / "out", config=CONFIG)
    assert len(store) == 11
    assert [bad.name for bad in store.skipped] == ["1/broken.jpg"]
    assert store.names == sorted(store.names)
    assert store.grid == (4, 4) and store.layers == (0, 2)
    for i, name in enumerate(store.names):
        expected = tiny.tokens(photos / name, layers=[0, 2])
        stored = store[i]
        assert torch.allclose(stored.patches, expected.patches, atol=1e-6)
        assert torch.allclose(stored.cls, expected.cls, atol=1e-6)
        assert torch.allclose(stored.layers[-1].patches, expected.layers[2].patches, atol=1e-6)
        assert torch.allclose(stored.layers[0].prefix, expected.layers[0].prefix, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, 10), min_size=1, max_size=15))
def test_any_rows_in_any_order(indices, store_of_photos):
    everything = store_of_photos[:]
    assert torch.equal(store_of_photos.read(indices).patches, everything.patches[indices])


@pytest.fixture(scope="module")
def store_of_photos(tiny, photos, tmp_path_factory):
    return save_tokens(tiny, photos, out=tmp_path_factory.mktemp("s") / "out", config=CONFIG)


def test_batches_slices_and_iteration_cover_everything(store_of_photos):
    whole = store_of_photos[:].patches
    assert torch.equal(torch.cat([part.patches for part in store_of_photos.batches(3)]), whole)
    assert torch.equal(torch.cat([part.patches for part in store_of_photos]), whole)
    assert torch.equal(store_of_photos[-1].patches, whole[-1:])
    with pytest.raises(IndexError):
        store_of_photos[11]


def test_half_precision_halves_the_files(tiny, photos, tmp_path):
    half = TokenConfig(batch=2, shard=4)
    store = save_tokens(tiny, photos, out=tmp_path / "half", config=half)
    assert store[0].patches.dtype == torch.float16
    expected = tiny.tokens(photos / store.names[0]).patches
    assert torch.allclose(store[0].patches.float(), expected, rtol=1e-3, atol=1e-3)


def test_an_interrupted_run_continues_to_the_same_bytes(tiny, photos, tmp_path, monkeypatch):
    save_tokens(tiny, photos, out=tmp_path / "whole", config=CONFIG)
    for stop_at in range(3):
        out = tmp_path / f"stopped-{stop_at}"
        written = []

        def stop(path, parts, write=extract.write_shard, at=stop_at, seen=written):
            if len(seen) == at:
                raise KeyboardInterrupt
            seen.append(path)
            write(path, parts)

        with monkeypatch.context() as patch:
            patch.setattr(extract, "write_shard", stop)
            with pytest.raises(KeyboardInterrupt):
                save_tokens(tiny, photos, out=out, config=CONFIG)
        with pytest.raises(StoreError, match="not finished"):
            open_tokens(out)
        save_tokens(tiny, photos, out=out, config=CONFIG)
        assert contents(out) == contents(tmp_path / "whole")


def test_a_finished_run_does_nothing_again(tiny, photos, tmp_path, monkeypatch):
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    monkeypatch.setattr(extract, "write_shards", None)
    done = []
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG, progress=lambda *a: done.append(a))
    assert done == [("tokens", 12, 12)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "dtype was float32, now float16"),
        ({"layers": ()}, "layers was"),
        ({"size": 40}, "size was"),
    ],
)
def test_other_options_are_refused(tiny, photos, tmp_path, change, message):
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    before = contents(tmp_path)
    options = {**vars(CONFIG), **change}
    with pytest.raises(StoreError, match=message):
        save_tokens(tiny, photos, out=tmp_path, config=TokenConfig(**options))
    assert contents(tmp_path) == before
    save_tokens(tiny, photos, out=tmp_path, config=TokenConfig(**options | {"overwrite": True}))


def test_another_model_is_refused(tiny, photos, tmp_path):
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    network = tiny_network()
    with torch.no_grad():
        network.norm.bias += 1
    with pytest.raises(StoreError, match="weights of 'VisionTransformer' are not the same"):
        save_tokens(load(network), photos, out=tmp_path, config=CONFIG)


def test_changed_images_are_refused(tiny, photos, tmp_path):
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    with pytest.raises(StoreError, match="12 images then, 4 now"):
        save_tokens(tiny, photos / "0", out=tmp_path, config=CONFIG)


def test_a_directory_of_something_else_is_not_touched(tiny, photos, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="not empty"):
            save_tokens(tiny, photos, out=tmp_path, config=TokenConfig(overwrite=overwrite))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_strict_makes_the_first_bad_file_an_error(tiny, photos, tmp_path):
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        save_tokens(tiny, photos, out=tmp_path / "out", config=TokenConfig(strict=True))


def test_a_full_disk_loses_nothing(tiny, photos, tmp_path, monkeypatch):
    calls = []

    def full(tensors, path, metadata, save=extract.save_file):
        calls.append(path)
        path.write_bytes(b"half")
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, path, metadata=metadata)

    with monkeypatch.context() as patch:
        patch.setattr(extract, "save_file", full)
        with pytest.raises(StoreError, match=r"disk is full.*run the same command again"):
            save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json", "shard-00000.safetensors"]
    assert len(save_tokens(tiny, photos, out=tmp_path, config=CONFIG)) == 11


def test_too_little_space_is_said_before_the_work(tiny, photos, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(StoreError, match="GB free"):
        save_tokens(tiny, photos, out=tmp_path / "out", config=CONFIG)
    assert not (tmp_path / "out").exists()


def test_values_beyond_float16_are_named_not_stored(photos, tmp_path):
    network = tiny_network()
    with torch.no_grad():
        network.norm.bias += 1e6
    with pytest.raises(StoreError, match=r"0/00\.png.*--dtype float32"):
        save_tokens(load(network), photos, out=tmp_path / "half")
    assert not list(tmp_path.glob("half/shard-*"))
    save_tokens(load(network), photos, out=tmp_path / "full", config=TokenConfig(dtype="float32"))


def test_damage_is_named(tiny, photos, tmp_path):
    save_tokens(tiny, photos, out=tmp_path, config=CONFIG)
    shard = tmp_path / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(StoreError, match="shard-00001"):
        open_tokens(tmp_path)[:]
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(StoreError, match=r"index\.json"):
        open_tokens(tmp_path)


def test_an_empty_place_says_how_to_fill_it(tmp_path):
    with pytest.raises(StoreError, match="clearvit tokens MODEL FOLDER"):
        open_tokens(tmp_path)


def test_a_folder_of_broken_files_gives_an_empty_store(tiny, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = save_tokens(tiny, tmp_path / "in", out=tmp_path / "out")
    assert len(store) == 0 and len(store.skipped) == 1


def test_the_index_is_plain_json_that_others_can_read(store_of_photos):
    index = json.loads((store_of_photos.folder / "index.json").read_text())
    assert index["grid"] == [4, 4]
    assert index["images"][0] == ["0/00.png", 0, 0]


def test_views_and_scale_give_clean_and_fine_tokens(tiny, tmp_path):
    (tmp_path / "photos").mkdir()
    soft_photos(tmp_path / "photos", 3)
    store = save_tokens(tiny, tmp_path / "photos", out=tmp_path / "fine", views=4, scale=2)
    assert store.grid == (8, 8) and store[0].scale == 2
    expected = denoise(tiny, tmp_path / "photos", views=4, scale=2)
    assert torch.allclose(store[:].patches.float(), expected.patches, atol=5e-3)
    with pytest.raises(StoreError, match="another run"):
        save_tokens(tiny, tmp_path / "photos", out=tmp_path / "fine", views=5, scale=2)


def test_views_that_do_not_suffice_leave_no_directory_that_refuses_the_right_ones(tiny, tmp_path):
    soft_photos(tmp_path, 2)
    photos, out = sorted(tmp_path.glob("*.png")), tmp_path / "fine"
    with pytest.raises(ModelError, match="too few for scale 2"):
        save_tokens(tiny, photos, out=out, views=3, scale=2)
    assert not out.exists()
    assert save_tokens(tiny, photos, out=out, views=4, scale=2).grid == (8, 8)
