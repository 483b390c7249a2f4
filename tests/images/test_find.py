from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import ImageSource, find_images, listing_of, read_image, spread_evenly
from clearvit.images import walk as walk_module
from clearvit.images.find import SUFFIXES


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(source: object) -> list[str]:
    return [picture.name for picture in find_images(source)]


def message(source: object) -> str:
    with pytest.raises(ImageError) as caught:
        find_images(source)
    return str(caught.value)


# Folders


def test_folder_is_searched_deeply_in_sorted_order(tmp_path: Path):
    touch(tmp_path, "b.jpg", "a/z.PNG", "a/b/c.Webp", "B.jpg", "a.gif", "ü.tif", "a b.bmp")
    touch(tmp_path, "notes.txt", "a/model.bin", "jpg", ".hidden.jpg", ".git/x.jpg", "a/._b.jpg")
    expected = ["B.jpg", "a b.bmp", "a.gif", "a/b/c.Webp", "a/z.PNG", "b.jpg", "ü.tif"]
    assert names(tmp_path) == names(str(tmp_path)) == names(f"{tmp_path}/") == expected
    for picture in find_images(tmp_path):
        assert os.path.samefile(picture.source, tmp_path / picture.name)


def test_order_does_not_depend_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "photos/one/1.jpg", "photos/two/2.jpg", "photos/3.jpg", "elsewhere/4.jpg")
    for link, target in (("0-two", "photos/two"), ("a", "elsewhere"), ("b", "elsewhere")):
        (tmp_path / "photos" / link).symlink_to(tmp_path / target)
    tmp_path /= "photos"
    expected = names(tmp_path)
    scandir = os.scandir

    class Backwards:
        def __init__(self, path: str) -> None:
            self.entries = sorted(scandir(path), key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(walk_module.os, "scandir", Backwards)
    assert names(tmp_path) == expected == ["3.jpg", "a/4.jpg", "one/1.jpg", "two/2.jpg"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems normalize names themselves")
def test_composed_and_decomposed_accents_sort_alike(tmp_path: Path):
    touch(tmp_path, "é.jpg", "z.jpg", "e\u0301a.jpg")
    assert names(tmp_path) == ["z.jpg", "é.jpg", "e\u0301a.jpg"]


def test_every_suffix_is_lower_case_and_found(tmp_path: Path):
    touch(tmp_path, *(f"x{suffix.upper()}" for suffix in SUFFIXES))
    assert len(find_images(tmp_path)) == len(SUFFIXES) >= 17
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in SUFFIXES)


def test_loops_of_links_end_and_each_picture_is_found_once(tmp_path: Path):
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    for i in range(3):  # several loops multiply: following them naively never ends
        (tmp_path / "a" / f"loop{i}").symlink_to(tmp_path)
        (tmp_path / "b" / f"loop{i}").symlink_to(tmp_path / "a")
    assert names(tmp_path) == ["a/1.jpg", "b/2.jpg"]
    assert len(find_images(f"{tmp_path}/**/*.jpg")) == 2


def test_links_out_of_the_folder_are_followed(tmp_path: Path):
    touch(tmp_path, "elsewhere/deep/1.jpg", "photos/2.jpg", "single.jpg")
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "file.jpg").symlink_to(tmp_path / "single.jpg")
    assert names(tmp_path / "photos") == ["2.jpg", "file.jpg", "link/deep/1.jpg"]


def test_bad_entries_are_found_so_that_they_are_reported(tmp_path: Path):
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    touch(tmp_path, "folder.jpg/inside.jpg")
    assert names(tmp_path) == ["folder.jpg/inside.jpg", "gone.jpg", "self.png"]


def test_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "open/1.jpg", "locked/2.jpg")
    scandir, access = os.scandir, os.access

    def refuse(path: str):
        if "locked" in str(path):  # root may list everything, so chmod proves nothing
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(walk_module.os, "scandir", refuse)
    pictures = find_images(tmp_path)
    assert [picture.name for picture in pictures] == ["locked", "open/1.jpg"]
    monkeypatch.setattr(
        os, "access", lambda path, mode: "locked" not in path and access(path, mode)
    )
    with pytest.raises(ImageError, match="folder without read permission"):
        read_image(pictures[0].source)
    assert "check its permissions" in message(tmp_path / "locked")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows names that are not Unicode")
def test_name_that_is_not_unicode_can_be_written_as_json(tmp_path: Path):
    folder = os.fsencode(tmp_path)
    for name in (b"\xff.jpg", b"\xfe.jpg"):
        Image.new("RGB", (2, 2)).save(os.path.join(folder, name), "JPEG")
    pictures = find_images(tmp_path)
    assert len({picture.name for picture in pictures}) == 2
    json.dumps([p.name for p in pictures], ensure_ascii=False).encode("utf-8")
    assert [read_image(picture.source).size for picture in pictures] == [(2, 2), (2, 2)]


def test_folder_without_images_says_what_was_looked_for(tmp_path: Path):
    touch(tmp_path, *(f"deep/{i}.txt" for i in range(7)), ".hidden.jpg")
    text = message(tmp_path)
    assert text.startswith(f"no images in {str(tmp_path)!r} (looked for .jpg, .png")
    assert "in all subfolders; 7 other files ignored" in text
    touch(tmp_path, "deep/8.jpg")
    assert names(tmp_path) == ["deep/8.jpg"]


# Files and patterns


def test_single_file_is_taken_whatever_its_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "sub/scan.dat")
    monkeypatch.chdir(tmp_path)
    assert find_images("sub/scan.dat") == [ImageSource("sub/scan.dat", "sub/scan.dat")]
    assert names(Path("sub") / "scan.dat") == ["sub/scan.dat"]


def test_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "b/2.jpg", "a/1.jpg", "a/deep/3.jpg", "a/x.png", "0.jpg", "a/.h.jpg")
    (tmp_path / "a" / "folder.jpg").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names("*/*.jpg") == ["a/1.jpg", "b/2.jpg"]
    assert names("a/?.*") == ["a/1.jpg", "a/x.png"]
    assert names("[ab]/[12].jpg") == ["a/1.jpg", "b/2.jpg"]
    assert names("**/*.jpg") == ["0.jpg", "a/1.jpg", "a/deep/3.jpg", "b/2.jpg"]
    assert names("a/**/*.jpg") == ["a/1.jpg", "a/deep/3.jpg"]
    assert names("a/**") == ["a/1.jpg", "a/deep/3.jpg", "a/x.png"]
    assert names("**/deep/**/3.jpg") == ["a/deep/3.jpg"]
    assert names(f"{tmp_path}/**/3.*") == [f"{tmp_path.as_posix()}/a/deep/3.jpg"]


def test_existing_path_with_brackets_is_no_pattern(tmp_path: Path):
    touch(tmp_path, "set[1]/a.jpg", "set1/b.jpg")
    assert names(tmp_path / "set[1]") == ["a.jpg"]


def test_pattern_without_match(tmp_path: Path):
    touch(tmp_path, "a.png")
    for pattern in ("*.jpg", "**/*.jpg", "missing/**/*.jpg"):
        assert message(tmp_path / pattern).startswith("no file matches")


def test_missing_path_names_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "photos/a.jpg")
    assert "does not exist" in message(tmp_path / "photo")
    assert "Closest: photos." in message(tmp_path / "photo")
    assert "there is no folder" in message(tmp_path / "nowhere" / "photos")
    monkeypatch.chdir(tmp_path)
    assert f"starts at {str(tmp_path)!r}" in message("qqqq")
    assert "'.'" in message("")
    assert "does not exist" in message("null\0byte")


# Lists


def test_list_keeps_its_order_and_makes_names_unique():
    image = Image.new("RGB", (2, 2))
    items = ["b.jpg", Path("x/a.jpg"), image, "b.jpg", "b.jpg#2", image]
    pictures = find_images(item for item in items)
    assert [picture.name for picture in pictures] == [
        "b.jpg",
        "x/a.jpg",
        "image-000002",
        "b.jpg#2",
        "b.jpg#2#2",
        "image-000005",
    ]
    assert [str(p.source) for p in pictures] == [str(item) for item in items]
    assert pictures[2].source is image
    assert find_images(pictures) == pictures


def test_single_image_in_memory():
    image = Image.new("RGB", (2, 2))
    assert find_images(image) == [ImageSource("image-000000", image)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "a#2", "a#3", "a#2#2", "b", "image-000001", None])))
def test_names_are_unique(paths: list[str | None]):
    image = Image.new("RGB", (1, 1))
    items = [image if path is None else path for path in paths]
    if not items:
        assert "empty" in message(items)
        return
    found = find_images(items)
    assert len({picture.name for picture in found}) == len(items)
    assert [picture.source for picture in found] == items


def test_wrong_types_name_the_remedy():
    for wrong in (None, 3, b"photos", {"a.jpg", "b.jpg"}):
        assert "give a folder, a file, a pattern" in message(wrong)
    assert message([]).startswith("the list of images is empty")
    assert "item 1 of the images is a ndarray" in message(["a.jpg", np.zeros((2, 2))])


def test_picture_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ImageSource("a", "a").name = "b"  # type: ignore[misc]


@given(st.integers(0, 50), st.integers(0, 60))
def test_spread_takes_so_many_in_order_and_evenly(total: int, count: int):
    few = spread_evenly(range(total), count)
    assert len(few) == min(total, count) == len(set(few)) and few == sorted(few)
    gaps = {later - earlier for earlier, later in itertools.pairwise(few)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_listing_notices_other_content_of_the_same_size(tmp_path):
    paths = [tmp_path / f"{i}.bmp" for i in range(3)]
    for path, color in zip(paths, ("red", "green", "blue"), strict=True):
        Image.new("RGB", (200, 300), color).save(path)
    before = listing_of(find_images(tmp_path))
    status = os.stat(paths[0])
    Image.new("RGB", (200, 300), "white").save(paths[0])
    os.utime(paths[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert os.stat(paths[0]).st_size == status.st_size
    assert listing_of(find_images(tmp_path)) != before


def test_a_listing_is_the_same_for_a_copy_and_notices_both_ends(tmp_path):
    content = bytearray(random.Random(0).randbytes(300_000))
    (tmp_path / "a.png").write_bytes(content)
    before = listing_of(find_images(tmp_path))
    for place in (0, 65_000, 150_000, -65_000, -1):
        content[place] ^= 1
        (tmp_path / "a.png").write_bytes(content)
        assert listing_of(find_images(tmp_path)) != before
        content[place] ^= 1
    (tmp_path / "a.png").write_bytes(content[:100_000])
    small = listing_of(find_images(tmp_path))
    os.utime(tmp_path / "a.png", (1, 1))  # of a small file only the content counts
    assert listing_of(find_images(tmp_path)) == small


def test_a_listing_waits_for_no_pipe_and_knows_images_in_memory(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    assert listing_of(find_images(tmp_path))
    red, blue = (Image.new("RGB", (4, 4), color) for color in ("red", "blue"))
    assert listing_of(find_images([red])) != listing_of(find_images([blue]))
