"""Folders of broken and of odd but good pictures, the same for the same seed."""

from __future__ import annotations

import io
import itertools
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

_PNG = b"\x89PNG\r\n\x1a\n"


def write_hostile(folder: Path, count: int = 60, seed: int = 0) -> list[Path]:
    """Write `count` distinct broken files with image suffixes; reading any of them must fail."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    paths = []
    written: set[bytes] = set()
    for stem, suffix, content in _broken(rng):
        if content in written:
            continue
        written.add(content)
        path = folder / f"{len(paths):03d}-{stem}{suffix}"
        path.write_bytes(content)
        paths.append(path)
        if len(paths) == count - 1:
            break
    link = folder / f"{len(paths):03d}-broken-link.jpg"
    link.symlink_to(folder / "nowhere.jpg")
    return [*paths, link][:count]


def write_good(folder: Path, count: int = 20, seed: int = 0) -> list[Path]:
    """Write `count` odd but good files: modes, formats, EXIF orientations, sizes and names."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    paths = []
    for name, image, options in itertools.islice(_odd(rng), count):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        image.save(path, **options)
        paths.append(path)
    return paths


def picture(rng: random.Random, mode: str = "RGB", size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Return a smooth random picture without any symmetry, so that each rotation of it differs."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    small = Image.frombytes(mode, (4, 3), rng.randbytes(12 * bands))
    return small.resize(size, Image.Resampling.BICUBIC)


def chunk(kind: bytes, content: bytes, *, flip: int = 0) -> bytes:
    """Return one PNG chunk; `flip` spoils its checksum."""
    checksum = zlib.crc32(kind + content) ^ flip
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png_header(width: int, height: int) -> bytes:
    """Return signature and header of an 8-bit RGB PNG of any claimed size, in pixels."""
    return _PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return the content of a file that holds the picture."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _encoded(rng: random.Random, kind: str, **options: object) -> bytes:
    image = picture(rng, "RGB", (96, 64))
    return encoded(image.convert("P") if kind == "GIF" else image, kind, **options)


def _broken(rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
    """Yield stem, suffix and content; the kinds first, then ever more truncations and noise."""
    yield "empty", ".png", b""
    yield "text", ".jpg", b"This is a shopping list: milk, bread, two lemons.\n" * 20
    yield "svg", ".png", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
    yield "html", ".jpeg", b"<!DOCTYPE html><html><body>404 Not Found</body></html>"
    yield "json", ".webp", b'{"error": "access denied"}'
    yield "pointer", ".jpg", b"version https://git-lfs.github.com/spec/v1\nsize 12345\n"
    yield "zip", ".bmp", b"PK\x03\x04" + rng.randbytes(200)
    yield "postscript", ".jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    yield "one-byte", ".gif", b"G"
    yield "zeros", ".tif", bytes(512)
    yield "bomb", ".png", png_header(100_000, 100_000) + chunk(b"IDAT", zlib.compress(bytes(99)))
    yield "no-pixels", ".png", png_header(0, 10) + chunk(b"IEND", b"")
    yield "header-only", ".png", png_header(64, 64)
    yield "jpeg-magic", ".jpg", b"\xff\xd8\xff"
    yield "gif-magic", ".gif", b"GIF89a"
    yield from _broken_png(rng)
    yield from _broken_others(rng)
    yield from _truncated(rng)
    while True:
        yield "noise", rng.choice([".jpg", ".png", ".bmp", ".webp"]), rng.randbytes(400)


def _broken_png(rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
    rows = zlib.compress(rng.randbytes(64 * (1 + 64 * 3)))
    end = chunk(b"IEND", b"")
    yield "crc-header", ".png", _PNG + chunk(b"IHDR", bytes(13), flip=1) + end
    yield "crc-data", ".png", png_header(64, 64) + chunk(b"IDAT", rows, flip=1) + end
    yield "not-zlib", ".png", png_header(64, 64) + chunk(b"IDAT", rng.randbytes(900)) + end
    yield "few-rows", ".png", png_header(64, 99) + chunk(b"IDAT", rows) + end
    yield "no-data", ".png", png_header(64, 64) + end
    middle = len(rows) // 2
    spoilt = rows[:middle] + bytes(200) + rows[middle + 200 :]
    yield "cut-zlib", ".png", png_header(64, 64) + chunk(b"IDAT", spoilt[:middle]) + end


def _broken_others(rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
    jpeg = _encoded(rng, "JPEG")
    yield "jpeg-header", ".jpg", jpeg[: jpeg.index(b"\xff\xda")]
    # Quantisation tables become comments. (Missing Huffman tables are no error: the standard ones
    # are assumed.)
    yield "no-tables", ".jpg", jpeg.replace(b"\xff\xdb", b"\xff\xe5")
    yield "jpeg-twelve-bit", ".jpg", jpeg.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c")
    tags = b"".join(rng.randbytes(12) for _ in range(6))
    yield "nonsense-tags", ".tif", b"II*\x00\x08\x00\x00\x00\x06\x00" + tags + bytes(4)
    yield "far-directory", ".tiff", b"MM\x00*\x7f\xff\xff\xff" + bytes(64)
    bmp = bytearray(_encoded(rng, "BMP"))
    bmp[14:18] = struct.pack("<I", 7)  # a header length that does not exist
    yield "header-length", ".bmp", bytes(bmp)
    webp = _encoded(rng, "WEBP")
    yield "riff-of-noise", ".webp", webp[:20] + rng.randbytes(len(webp) - 20)
    yield "gif-no-frame", ".gif", b"GIF89a\x40\x00\x40\x00\x00\x00\x00;"
    yield "ppm-no-size", ".ppm", b"P6\nwide high\n255\n" + bytes(30)


def _truncated(rng: random.Random) -> Iterator[tuple[str, str, bytes]]:
    kinds = [
        ("JPEG", ".jpg", {}),
        ("JPEG", ".jpeg", {"progressive": True}),
        ("PNG", ".png", {}),
        ("WEBP", ".webp", {}),
        ("GIF", ".gif", {}),
        ("TIFF", ".tif", {}),
        ("BMP", ".bmp", {}),
        ("PPM", ".ppm", {}),
    ]
    for part in (0.3, 0.5, 0.7, 0.9):
        for kind, suffix, options in kinds:
            whole = _encoded(rng, kind, **options)
            yield f"cut-{part}", suffix, whole[: int(len(whole) * part)]


def _odd(rng: random.Random) -> Iterator[tuple[str, Image.Image, dict[str, object]]]:
    """Yield name, picture and how to save it; endless, JPEG with EXIF after the odd ones."""
    grey = picture(rng, "L")
    palette = picture(rng).quantize(16)
    deep = Image.frombytes("I;16", (20, 10), rng.randbytes(400))
    yield "GREY.JPG", grey, {"progressive": True}
    yield "palette.png", palette, {}
    yield "palette transparent index.png", palette, {"transparency": 3}
    yield "palette-transparent-bytes.png", palette, {"transparency": rng.randbytes(16)}
    yield "cmyk.jpg", picture(rng, "CMYK"), {}
    yield "alpha.png", picture(rng, "RGBA"), {}
    yield "grey-alpha.png", picture(rng, "LA"), {}
    yield "sixteen-bit.png", deep, {}
    yield "one-bit.png", grey.convert("1"), {}
    suffixes = (".jpg", ".png", ".webp", ".tif", ".jpeg", ".jpg", ".png", ".tiff")
    for orientation, suffix in enumerate(suffixes, start=1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield f"exif/turned-{orientation}{suffix}", picture(rng), {"exif": exif}
    yield "pixel.bmp", picture(rng, size=(1, 1)), {}
    yield "Übergröße 日本 ☀.webp", picture(rng, size=(1, 70)), {}
    yield "frames.gif", picture(rng), {"save_all": True, "append_images": [picture(rng)]}
    yield "lzw.tiff", picture(rng), {"compression": "tiff_lzw"}
    yield "float.tif", grey.convert("F"), {}
    yield "wide.ppm", picture(rng, size=(300, 1)), {}
    for i in itertools.count():
        yield f"more-{i:04d}.jpg", picture(rng, size=(32 + i % 64, 32)), {}
