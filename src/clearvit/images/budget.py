"""What decoding an image would cost, judged by its header before a pixel is decoded.

A file of 34 bytes can ask for gigabytes. So bytes are counted, not pixels: those of the decoded
mode, of what the decoder needs beside it, and of the conversion to RGB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from PIL import Image

from clearvit.errors import ImageError

MAX_BYTES = 1 << 29  # of one image in memory: 134 million pixels of RGB, 22 of RGBA in WebP
CALM_BYTES = 1 << 28  # below this an image is decoded by a thread, above it in a process of its own
CALM_SCANS = 40
CALM_PIXELS = 1 << 22  # for decoders that are written in Python
SCAN_PIXELS = 1 << 32  # pixels x scans of a JPEG: about 10 s
MAX_SCANS = 500
CHUNK = 1 << 20

_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # else 4 bytes
# Beside the image itself: canvases of animations, planes of 32 bits; measured with Pillow 13.
_DECODER = {"WEBP": 12, "AVIF": 12, "HEIF": 12, "JPEG2000": 16}
_PROGRESSIVE = 6  # bytes per pixel: two for each coefficient
_COMPILED = frozenset(
    "avif bcn bit fli gif hex jpeg jpeg2k libtiff packbits pcd pcx raw sgi_rle sun_rle tga_rle"
    " tiff_lzw webp xbm zip".split()
)


@dataclass(frozen=True)
class Cost:
    """What decoding takes at most.

    Attributes:
        bytes: Memory.
        shrink: A JPEG is decoded at 1 / shrink of its size; 1, 2, 4 or 8.
        calm: Whether it surely ends soon, so that a thread may do it.
    """

    bytes: int
    shrink: int
    calm: bool


def judge_cost(image: Image.Image, stream: BinaryIO | None, max_bytes: int = MAX_BYTES) -> Cost:
    """Find out what an opened image costs, or refuse it.

    Args:
        image: Opened, not loaded.
        stream: Its file, for the scans of a JPEG; None where there is none.
        max_bytes: Most memory that it may take; a larger JPEG is decoded at a fraction of its size.

    Raises:
        ImageError: It costs too much.
    """
    width, height = image.size
    each = _bytes_per_pixel(image)
    scans = 1
    if image.format in ("JPEG", "MPO") and stream is not None:
        scans = _count_scans(stream)
        if scans > MAX_SCANS or scans * width * height > SCAN_PIXELS:
            raise ImageError(f"too slow: {scans} scans of {width} x {height} pixels")
    progressive = bool(image.info.get("progressive") or image.info.get("progression"))
    buffered = width * height * _PROGRESSIVE * progressive + _tile_bytes(image)
    shrink = 1
    if image.format in ("JPEG", "MPO"):
        while shrink < 8 and width * height * each // shrink**2 + buffered > max_bytes:
            shrink *= 2
    needed = width * height * each // shrink**2 + buffered
    if needed > max_bytes:
        raise ImageError(
            f"too large: {width} x {height} pixels of {image.mode} need {needed >> 20} MB of"
            f" memory, limit {max_bytes >> 20}"
        )
    slow = width * height > CALM_PIXELS and not _is_compiled(image)
    return Cost(needed, shrink, needed <= CALM_BYTES and scans <= CALM_SCANS and not slow)


def _bytes_per_pixel(image: Image.Image) -> int:
    mode = image.mode
    stored = _STORED.get(mode, 4)
    total = stored + _DECODER.get(image.format or "", 0)
    if mode in ("I", "F") or mode.startswith("I;"):
        total += 5  # gray, then RGB
    elif mode != "RGB" or "transparency" in image.info:
        total += 4
    return total + 4 * ("exif" in image.info)  # which may turn it


def _tile_bytes(image: Image.Image) -> int:
    """Give the memory of one tile or strip of a TIFF, which may be larger than the image."""
    tags: Any = getattr(image, "tag_v2", None)
    if tags is None:
        return 0
    width, length = _number(tags, 322, image.width), _number(tags, 323, 0)
    rows = length or min(_number(tags, 278, image.height), image.height)
    return width * rows * _number(tags, 277, 1) * _number(tags, 258, 8) // 8


def _number(tags: Any, key: int, default: int) -> int:
    value = tags.get(key, default)
    values = value if isinstance(value, tuple) else (value,)
    return max((v for v in values if isinstance(v, int) and v > 0), default=default)


def _count_scans(stream: BinaryIO) -> int:
    """Count the markers of scans; in the data of a scan 0xFF is never followed by 0xDA."""
    position = stream.tell()
    stream.seek(0)
    count, last = 0, b""
    while (piece := stream.read(CHUNK)) and count <= MAX_SCANS:
        count += (last + piece).count(b"\xff\xda")
        last = piece[-1:]
    stream.seek(position)
    return max(count, 1)


def _is_compiled(image: Image.Image) -> bool:
    tiles: Any = getattr(image, "tile", ())
    return all(tile[0] in _COMPILED for tile in tiles)
