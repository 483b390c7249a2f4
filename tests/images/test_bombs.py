"""Small files that ask for much memory or time are refused by their header, or ended."""

import io
import json
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import apart, budget, decode, read_image, rgb
from clearvit.images.apart import read_apart
from clearvit.images.budget import judge_cost
from tests.helpers.bombs import BOMBS, many_scans
from tests.helpers.hostile import encoded, picture


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_its_header(tmp_path, monkeypatch, name):
    monkeypatch.setattr(decode, "read_apart", lambda *a: pytest.fail("not by the header"))
    content = BOMBS[name]()
    assert len(content) < 1_200_000
    (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    for source in (tmp_path / name, content):
        with pytest.raises(ImageError, match=r"too large|too slow|not read"):
            read_image(source)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_an_open_image_is_judged_too():
    with pytest.raises(ImageError, match="too large"):
        read_image(Image.open(io.BytesIO(BOMBS["alpha.png"]())))


def test_a_progressive_jpeg_of_ten_scans_is_read_as_before():
    image = picture(random.Random(1), "RGB", (90, 60))
    content = encoded(image, "JPEG", progressive=True)
    assert content.count(b"\xff\xda") > 5
    expected = Image.open(io.BytesIO(content)).convert("RGB")
    assert read_image(content).tobytes() == expected.tobytes()


def cost_of(content, **options):
    stream = io.BytesIO(content)
    image = decode._identify(stream)
    return judge_cost(image, stream, **options)


def test_a_jpeg_beyond_the_budget_is_decoded_smaller(monkeypatch):
    image = picture(random.Random(1), "RGB", (640, 480))
    content = encoded(image, "JPEG", quality=95)
    assert cost_of(content).shrink == 1
    for shrink in (2, 4, 8):
        assert cost_of(content, max_bytes=640 * 480 * 4 // shrink**2).shrink == shrink
    with pytest.raises(ImageError, match="too large"):
        cost_of(content, max_bytes=1000)
    with pytest.raises(ImageError, match="too large"):  # coefficients of all scans stay in memory
        cost_of(encoded(image, "JPEG", progressive=True), max_bytes=640 * 480 * 4)
    small = judge_cost

    def tight(image, stream):
        return small(image, stream, max_bytes=640 * 480)

    monkeypatch.setattr(decode, "judge_cost", tight)
    found = read_image(content)
    assert found.size == (320, 240)
    difference = np.asarray(image.resize((320, 240)), int) - np.asarray(found, int)
    assert np.abs(difference).mean() < 3


@pytest.mark.parametrize(
    "content, calm",
    [
        (encoded(Image.new("RGB", (64, 64)), "JPEG"), True),
        (encoded(Image.new("L", (2000, 2000)), "PNG"), True),
        (many_scans(100), False),
        (encoded(Image.new("L", (2200, 2200)), "PPM").replace(b"P5", b"P2"), False),
    ],
)
def test_what_may_take_long_is_not_left_to_a_thread(content, calm):
    assert cost_of(content).calm == calm


def test_apart_gives_the_same_image(tmp_path):
    (tmp_path / "a b.jpg").write_bytes(encoded(picture(random.Random(2)), "JPEG"))
    expected = read_image(tmp_path / "a b.jpg")
    assert read_apart(tmp_path / "a b.jpg", 10**6).tobytes() == expected.tobytes()
    content = encoded(picture(random.Random(2), "RGBA"), "PNG")
    assert read_apart(content, 10**6).tobytes() == read_image(content).tobytes()
    with pytest.raises(ImageError, match="limit 9"):
        read_apart(content, 9)


def test_apart_ends_what_takes_too_long(tmp_path):
    with pytest.raises(ImageError, match="too slow"):
        read_apart(tmp_path / "any.png", 10**6, seconds=0.01)


LIMITED = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from clearvit.images import apart
apart.MEMORY = 250 << 20
apart.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no limit on memory")
def test_apart_has_no_more_memory_than_it_may_take(tmp_path):
    large = encoded(Image.new("RGB", (9000, 9000)), "PNG")  # 243 MB of pixels
    (tmp_path / "large.png").write_bytes(large)
    task = {"source": str(tmp_path / "large.png"), "folder": str(tmp_path), "max_pixels": 10**9}
    done = subprocess.run(
        [sys.executable, "-I", "-c", LIMITED, str(apart.HOME), json.dumps(task)],
        capture_output=True,
    )
    assert "memory" in json.loads(done.stdout)["reason"]


def test_a_decoder_that_dies_is_one_reason(tmp_path, monkeypatch):
    (tmp_path / "clearvit").mkdir()
    (tmp_path / "clearvit" / "__init__.py").write_text("raise SystemExit(9)")
    monkeypatch.setattr(apart, "HOME", tmp_path)  # as if the system had ended it
    with pytest.raises(ImageError, match="stopped"):
        read_apart(b"x", 10)


def test_costly_files_go_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "read_apart", lambda source, most: "apart")
    assert read_image(many_scans(100)) == "apart"
    monkeypatch.setattr(decode, "LARGE_FILE", 10)
    (tmp_path / "a.png").write_bytes(encoded(picture(random.Random(0))))
    assert read_image(tmp_path / "a.png") == "apart"
    assert read_image(tmp_path / "a.png", apart=False).mode == "RGB"


@pytest.mark.parametrize("mode", ["I;16", "I", "F", "RGBA", "LA", "PA"])
def test_bands_change_no_pixel(monkeypatch, mode):
    rng = np.random.default_rng(0)
    if mode in ("RGBA", "LA"):
        image = picture(random.Random(3), mode, (37, 29))
    elif mode == "PA":
        image = picture(random.Random(3), "RGBA", (37, 29)).convert("PA")
    elif mode == "F":
        values = rng.normal(size=(29, 37)).astype(np.float32)
        values[0, 0], values[5, 5], values[28, 36] = np.nan, np.inf, -np.inf
        image = Image.fromarray(values)
    else:
        values = rng.integers(0, 65535, (29, 37)).astype(np.uint16 if mode == "I;16" else np.int32)
        image = Image.fromarray(values * (1 if mode == "I;16" else 7))
    whole = rgb.to_rgb(image).tobytes()
    monkeypatch.setattr(rgb, "BAND_PIXELS", 100)
    assert rgb.to_rgb(image).tobytes() == whole


def test_the_estimate_holds_for_every_mode():
    for mode in ("1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16", "HSV"):
        assert budget._bytes_per_pixel(Image.new(mode, (1, 1))) >= 4
