from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image

from clearvit.images import read_image
from tests.helpers.hostile import encoded

RED, WHITE = (255, 0, 0), (255, 255, 255)


def pixel(source: bytes | Image.Image) -> tuple[int, ...]:
    return read_image(source).getpixel((0, 0))


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, WHITE),
        ("1", 0, (0, 0, 0)),
        ("L", 77, (77, 77, 77)),
        ("LA", (10, 255), (10, 10, 10)),
        ("LA", (10, 0), WHITE),
        ("La", (0, 0), WHITE),
        ("La", (10, 255), (10, 10, 10)),
        ("RGBA", (255, 0, 0, 255), RED),
        ("RGBA", (255, 0, 0, 0), WHITE),
        ("RGBA", (255, 0, 0, 51), (255, 204, 204)),
        ("RGBa", (51, 0, 0, 51), (255, 204, 204)),
        ("RGBX", (255, 0, 0, 0), RED),
        ("CMYK", (0, 255, 255, 0), RED),
        ("YCbCr", (128, 128, 128), (128, 128, 128)),
        ("HSV", (0, 255, 255), RED),
        ("LAB", (255, 128, 128), WHITE),  # a and b are stored with an offset of 128
        ("I", 65535, WHITE),
        ("I", 257 * 9, (9, 9, 9)),
        ("I;16", 65535, WHITE),
        ("I;16", 257 * 9, (9, 9, 9)),
        ("I;16", 200, (1, 1, 1)),  # 0.78, rounded
        ("I;16B", 257 * 9, (9, 9, 9)),
        ("I;16L", 257 * 9, (9, 9, 9)),
    ],
)
def test_every_mode_becomes_rgb(mode: str, value: object, expected: tuple[int, ...]):
    image = Image.new(mode, (3, 2), value)
    assert read_image(image).mode == "RGB" and read_image(image).size == (3, 2)
    assert max(abs(a - b) for a, b in zip(pixel(image), expected, strict=True)) <= 1
    if mode not in ("HSV", "LAB", "YCbCr"):
        assert pixel(image) == expected


def test_transparent_palette_by_index_and_by_bytes():
    image = Image.new("P", (2, 1), 1)
    image.putpalette([0, 0, 255, 255, 0, 0])
    assert pixel(encoded(image)) == RED
    assert pixel(encoded(image, transparency=1)) == WHITE
    assert pixel(encoded(image, transparency=0)) == RED
    assert pixel(encoded(image, transparency=bytes([255, 51]))) == (255, 204, 204)
    assert pixel(encoded(image, "GIF", transparency=1)) == WHITE


def test_palette_with_alpha():
    image = Image.new("PA", (2, 1), (1, 0))
    image.putpalette([0, 0, 255, 255, 0, 0])
    assert pixel(image) == WHITE
    image.putalpha(255)
    assert pixel(image) == RED


def test_colour_key_is_transparent():
    assert pixel(encoded(Image.new("RGB", (2, 2), RED), transparency=RED)) == WHITE
    assert pixel(encoded(Image.new("L", (2, 2), 9), transparency=9)) == WHITE


def test_inverted_cmyk_jpeg_keeps_its_colours():
    content = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    assert b"Adobe" in content  # Pillow, like Adobe, stores the inks inverted under this mark
    assert sum(abs(a - b) for a, b in zip(pixel(content), RED, strict=True)) < 9


def test_sixteen_bit_png():
    values = np.array([[0, 257, 257 * 128, 65535]], np.uint16)
    image = read_image(encoded(Image.fromarray(values)))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_depth_is_stretched_between_its_own_ends(dtype: type):
    values = np.array([[-1000, 0, 1000]], dtype)
    image = read_image(Image.fromarray(values))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 128, 255]


def test_float_with_unknown_values():
    values = np.array([[np.nan, 2.0, 4.0, np.inf, -np.inf]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = read_image(Image.fromarray(values))
        nothing = read_image(Image.fromarray(np.full((2, 2), np.nan, np.float32)))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 0, 255, 255, 0]
    assert not np.asarray(nothing).any()


def test_constant_float_is_black():
    assert pixel(Image.new("F", (2, 2), 3.5)) == (0, 0, 0)
