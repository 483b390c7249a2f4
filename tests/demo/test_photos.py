import numpy as np
import pytest
from PIL import Image

from clearvit.demo.photos import HELD, packaged_photos, prepare_photos
from clearvit.errors import ImageError, StoreError


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_packaged_photos_are_kept_apart_and_cut_the_same_way_again(tmp_path):
    first = prepare_photos(tmp_path / "a" / "images", None, parts=2)
    second = prepare_photos(tmp_path / "b" / "images", None, parts=2)
    learn, held = contents(first.learn), contents(first.held)
    assert learn == contents(second.learn) and held == contents(second.held)
    kept = {name.removesuffix(".png") for name in held}
    assert kept and kept <= set(HELD)
    assert not any(name.startswith(tuple(kept)) for name in learn)
    assert len(learn) == 2 * (len(packaged_photos()) - len(kept))
    with Image.open(first.query) as query, Image.open(first.held / "chelsea.png") as whole:
        assert query.width < whole.width and query.height < whole.height


def test_photos_of_ones_own_are_split(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(13):
        pixels = np.full((20, 30, 3), number * 10, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
    found = prepare_photos(tmp_path / "out" / "images", folder, parts=2)
    assert sorted(contents(found.held)) == ["00.png", "06.png", "12.png"]
    assert len(contents(found.learn)) == 10


def test_too_few_photos_are_an_error_before_any_work(tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "one.png")
    with pytest.raises(ImageError, match="at least 12"):
        prepare_photos(tmp_path / "out", tmp_path, parts=2)
    assert not (tmp_path / "out").exists()


def many(folder, count=12):
    for number in range(count):
        photo = folder / f"{number % 2}" / f"{number // 2}.jpg"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (20 * number, 99, 0)).save(photo)
    return folder


def test_photos_of_one_name_in_two_folders_are_two_photos(tmp_path):
    found = prepare_photos(tmp_path / "out" / "images", many(tmp_path / "mine"), parts=2)
    learn, held = contents(found.learn), contents(found.held)
    assert len(learn) + len(held) == 12
    assert not set(learn.values()) & set(held.values())


def test_files_that_cannot_be_read_are_left_out_and_named(tmp_path):
    mine = many(tmp_path / "mine", 13)
    (mine / "0" / "3.jpg").write_text("no image")
    (mine / "notes.txt").write_text("hello")
    found = prepare_photos(tmp_path / "out" / "images", mine, parts=2)
    assert len(contents(found.learn)) + len(contents(found.held)) == 12
    assert [bad.name for bad in found.skipped] == ["0/3.jpg"]
    (mine / "0" / "4.jpg").write_text("no image")
    with pytest.raises(ImageError, match=r"11 of 13 images can be read.*at least 12"):
        prepare_photos(tmp_path / "another" / "images", mine, parts=2)
    assert not (tmp_path / "another").exists()


def test_the_demo_of_other_photos_is_not_mixed_with_this_one(tmp_path):
    prepare_photos(tmp_path / "out" / "images", many(tmp_path / "mine"), parts=2)
    for other in (None, many(tmp_path / "more", 20)):
        with pytest.raises(StoreError, match="other images"):
            prepare_photos(tmp_path / "out" / "images", other, parts=2)
