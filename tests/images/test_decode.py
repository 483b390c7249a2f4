from __future__ import annotations

import io
import os
import random
import socket
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from clearvit.errors import ImageError
from clearvit.images import read_image
from clearvit.images.decode import MAX_PIXELS
from tests.helpers.hostile import encoded, picture, png_header, write_good, write_hostile

# Stored orientation -> how the upright picture must be turned to be stored that way (EXIF 2.32,
# 4.6.4.A): written with numpy and independently of the code, which maps the other way round.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


def reason(source: object, **options: int) -> str:
    with pytest.raises(ImageError) as caught:
        read_image(source, **options)
    return str(caught.value)


# Broken and odd files


@pytest.mark.parametrize("seed", [0, 1])
def test_every_hostile_file_gives_a_short_reason_without_its_path(tmp_path: Path, seed: int):
    paths = write_hostile(tmp_path, seed=seed)
    assert len(set(paths)) == 60
    contents = [path.read_bytes() for path in paths if path.exists()]
    assert len(set(contents)) == 59  # all but the broken link
    for path in paths:
        text = reason(path)
        assert 0 < len(text) < 80
        assert path.name not in text and str(tmp_path) not in text


def test_hostile_files_name_the_right_reason(tmp_path: Path):
    reasons = {path.name[4:]: reason(path) for path in write_hostile(tmp_path)}
    assert reasons["empty.png"] == "zero bytes"
    assert reasons["text.jpg"] == reasons["svg.png"] == reasons["html.jpeg"] == "not an image"
    assert reasons["cut-0.5.jpg"] == reasons["cut-0.5.bmp"] == "truncated"
    assert reasons["bomb.png"] == "too large: 100000 x 100000 pixels, limit 178956970"
    assert reasons["broken-link.jpg"] == "broken link"
    assert reasons["crc-data.png"] == "damaged PNG"
    assert reasons["postscript.jpg"] == "not an image"  # it must not even reach Ghostscript


def test_every_good_file_is_read(tmp_path: Path):
    paths = write_good(tmp_path, count=40)
    assert len(set(paths)) == 40
    for path in paths:
        image = read_image(path)
        assert image.mode == "RGB" and min(image.size) >= 1
        assert image.tobytes() == read_image(path.read_bytes()).tobytes()


def test_heic_without_its_plugin_names_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    assert "pip install pillow-heif" in reason(b"\0\0\0\x18ftypheic" + bytes(40))


def test_truncated_file_is_an_error_in_every_format():
    whole = picture(random.Random(0), size=(64, 64))
    for kind in ("JPEG", "PNG", "BMP", "TIFF", "PPM", "WEBP", "TGA"):
        content = encoded(whole, kind)
        read_image(content)
        reason(content[: len(content) // 2])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_image_error(content: bytes):
    try:
        assert read_image(content).mode == "RGB"
    except ImageError:
        pass


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000"]),
    places=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=6),
)
@pytest.mark.filterwarnings("ignore")
def test_spoilt_bytes_raise_nothing_but_image_error(kind: str, places: list[tuple[float, int]]):
    content = bytearray(encoded(picture(random.Random(1), size=(24, 16)), kind))
    for place, value in places:
        content[int(place * len(content))] = value
    try:
        assert read_image(content, max_pixels=10**6).mode == "RGB"
    except ImageError:
        pass


ERRORS = [SyntaxError, struct.error, ValueError, OSError, EOFError, MemoryError, zlib.error]
ERRORS += [IndexError, KeyError, TypeError, RuntimeError, RecursionError, NotImplementedError]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", ["open", "load"])
def test_any_exception_of_a_plugin_is_an_image_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], at: str
):
    class Fake(ImageFile.ImageFile):
        format = "FAKE"

        def _open(self) -> None:
            self._size, self._mode = (4, 4), "RGB"
            if at == "open":
                raise error("inside the plugin")

        def load(self):
            raise error("inside the plugin")

    accept = lambda prefix: prefix.startswith(b"FAKE")  # noqa: E731
    monkeypatch.setitem(Image.OPEN, "FAKE", (Fake, accept))
    expected = {MemoryError: "out of memory", NotImplementedError: "unsupported kind of FAKE"}
    truncated = (EOFError, struct.error)
    default = "truncated" if error in truncated and at == "load" else "damaged FAKE"
    if at == "open" and error is struct.error:
        default = "damaged FAKE"  # Pillow turns it into SyntaxError
    assert reason(b"FAKE picture") == expected.get(error, default)


# What is no file


def test_zero_bytes_folder_and_missing_file(tmp_path: Path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "folder.jpg").mkdir()
    assert reason(tmp_path / "empty.jpg") == reason(b"") == "zero bytes"
    assert reason(tmp_path / "folder.jpg") == "is a folder"
    assert reason(str(tmp_path / "missing.jpg")) == "no such file"
    assert reason("null\0byte.jpg") == "not a valid path"
    assert "file name too long" in reason("long" * 2000)


def test_link_that_points_to_itself(tmp_path: Path):
    (tmp_path / "self.jpg").symlink_to(tmp_path / "self.jpg")
    assert "symbolic links" in reason(tmp_path / "self.jpg")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jpg")
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(reason(tmp_path / "pipe.jpg")), daemon=True
    )
    thread.start()
    thread.join(5)
    assert found == ["not a regular file"]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no sockets in files here")
def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        assert reason("socket.jpg") == "not a regular file"


def test_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "secret.jpg"
    path.write_bytes(b"content")

    def refuse(*_: object, **__: object):  # root may read everything, so chmod proves nothing
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    assert reason(path) == "cannot be read: permission denied"


def test_wrong_type_names_the_remedy():
    assert "fromarray" in reason(np.zeros((4, 4, 3), np.uint8))
    assert "NoneType" in reason(None)


def test_file_is_closed_after_reading(tmp_path: Path):
    (path,) = write_good(tmp_path, count=1)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    images = [read_image(path) for _ in range(5)]
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert len(images) == 5 and after == before


# Size


@pytest.mark.parametrize("side", [13_378, 15_000, 30_000])  # just above, 1 to 2 times, far above
def test_bomb_is_refused_without_warning_or_decoding(monkeypatch: pytest.MonkeyPatch, side: int):
    assert side * side > MAX_PIXELS
    loads: list[object] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", loads.append)
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = reason(png_header(side, side) + b"\0\0\0\0IDAT")
    assert text == f"too large: {side} x {side} pixels, limit {MAX_PIXELS}"
    assert not loads and limit == Image.MAX_IMAGE_PIXELS


def test_limit_is_the_largest_size_allowed():
    image = picture(random.Random(0), size=(10, 7))
    assert read_image(encoded(image), max_pixels=70).size == (10, 7)
    assert reason(encoded(image), max_pixels=69) == "too large: 10 x 7 pixels, limit 69"
    assert reason(image, max_pixels=69) == "too large: 10 x 7 pixels, limit 69"


def test_limit_above_the_one_of_pillow_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(encoded(Image.new("RGB", (20, 20)))).size == (20, 20)


def test_image_without_pixels():
    assert reason(Image.new("RGB", (0, 5))) == "no pixels: 0 x 5"


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 9),
    height=st.integers(1, 9),
    kind=st.sampled_from(["PNG", "TIFF", "WEBP"]),
    seed=st.integers(0, 99),
)
def test_orientation_equals_the_explicit_transpose(
    orientation: int, width: int, height: int, kind: str, seed: int
):
    upright = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    image = read_image(encoded(stored, kind, exif=exif, **options))
    assert np.array_equal(np.asarray(image), upright)


def test_second_reading_does_not_turn_again():
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.open(io.BytesIO(encoded(picture(random.Random(0)), exif=exif)))
    once = read_image(stored)
    assert once.size == (32, 48)
    assert read_image(once).tobytes() == once.tobytes()
    from_file = read_image(encoded(picture(random.Random(0)), exif=exif))
    assert read_image(from_file).tobytes() == from_file.tobytes() == once.tobytes()
    assert stored.size == (48, 32) and stored.getexif()[0x0112] == 6  # the caller's is untouched


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0garbage that is no TIFF header",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\xff\xff\xff\x7f\xff\xff\xff\x7f",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x2a\0\0\0\0\0\0\0",  # 42
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_ignored(exif: bytes, kind: str):
    image = picture(random.Random(0))
    plain = read_image(encoded(image, kind))
    assert read_image(encoded(image, kind, exif=exif)).tobytes() == plain.tobytes()


def test_failing_exif_is_ignored(monkeypatch: pytest.MonkeyPatch):
    def fail(_: object) -> None:
        raise RecursionError("EXIF that refers to itself")

    content = encoded(picture(random.Random(0)))
    monkeypatch.setattr(Image.Image, "getexif", fail)
    assert read_image(Image.new("RGB", (4, 2))).size == (4, 2)
    assert read_image(content).size == (48, 32)


# Frames and images in memory


def test_first_frame_is_taken():
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 0, 255))]
    for kind in ("GIF", "PNG", "TIFF", "WEBP"):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        red, _, blue = read_image(content).getpixel((0, 0))
        assert red > 240 and blue < 15


def test_rgb_image_in_memory_is_returned_itself():
    image = picture(random.Random(0))
    assert read_image(image) is image


def test_one_lazy_image_in_many_threads():
    content = encoded(picture(random.Random(0), size=(200, 200)))
    expected = read_image(content).tobytes()
    for _ in range(10):
        lazy = Image.open(io.BytesIO(content))
        with ThreadPoolExecutor(4) as pool:
            images = list(pool.map(read_image, [lazy] * 8))
        assert all(image.tobytes() == expected for image in images)
