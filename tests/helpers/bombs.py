"""Small files that would take gigabytes or minutes to decode."""

from __future__ import annotations

import random
import struct
import zlib

from PIL import Image

from tests.helpers.hostile import chunk, encoded, picture

SIDE = 13_000  # whose square is below Pillow's own limit


def webp_bomb(side=SIDE):
    """One color, lossless: no bit per pixel, so the size in the header is free."""
    content = bytearray(encoded(Image.new("RGB", (16, 16), "red"), "WEBP", lossless=True))
    start = content.index(b"VP8L") + 9  # after the length and a signature
    bits = int.from_bytes(content[start : start + 4], "little") >> 28 << 28
    bits |= (side - 1) | (side - 1) << 14
    content[start : start + 4] = bits.to_bytes(4, "little")
    return bytes(content)


def deep_png(side=SIDE, kind=0, bits=16):
    """A PNG of zeros; by default of 16-bit gray."""
    head = struct.pack(">IIBBBBB", side, side, bits, kind, 0, 0, 0)
    rows = zlib.compress(bytes(10_000))
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows)
    return content + chunk(b"IEND", b"")


def icon_bomb(side=SIDE):
    """An icon that says 16 x 16 and holds a PNG of another size."""
    inner = deep_png(side, kind=2, bits=8)
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inner


def many_scans(scans=2000, side=64):
    """A progressive JPEG whose last scan comes again and again."""
    image = picture(random.Random(0), "RGB", (side, side))
    content = encoded(image, "JPEG", progressive=True)
    start = content.rindex(b"\xff\xda")
    return content[:start] + content[start:-2] * scans + content[-2:]


def wide_tile(side=65_520):
    """A TIFF of 16 x 16 pixels whose only tile is far larger."""
    tags = {256: 16, 257: 16, 258: 8, 259: 5, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: 8}
    entries = b"".join(struct.pack("<HHII", key, 4, 1, value) for key, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


BOMBS = {
    "webp.webp": webp_bomb,
    "gray.png": deep_png,
    "alpha.png": lambda: deep_png(kind=6, bits=8),
    "icon.png": icon_bomb,
    "scans.jpg": many_scans,
    "tile.tif": wide_tile,
}
