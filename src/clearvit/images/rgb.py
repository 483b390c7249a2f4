"""Any Pillow mode to RGB, the way a person would expect to see the image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ALPHA_MODES = frozenset({"LA", "PA", "RGBA"})
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
_WORD = 65535  # the largest value of a 16-bit channel
BAND_PIXELS = 1 << 20  # that are converted at a time


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in mode "RGB", 0 to 255 per channel.

    Transparency is laid over white. 16-bit gray is scaled so that 65535 becomes 255. Mode "I"
    within 0..65535 counts as 16-bit gray, since older Pillow opens 16-bit PNG that way. Other "I"
    and every "F" image (depth, radiance) is stretched from its own smallest and largest finite
    value to 0..255. Embedded color profiles are ignored, as the usual training pipelines do.

    Args:
        image: A loaded image of any mode; it is returned itself if it is opaque RGB already.
    """
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;"):
        return _from_deep(image)
    if mode in _PREMULTIPLIED:
        return _over_white(image.convert(_PREMULTIPLIED[mode]))
    if mode in _ALPHA_MODES or "transparency" in image.info:
        return _over_white(image)
    return image if mode == "RGB" else image.convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Cut an image into bands of rows, so that conversions need little memory; (top, band)."""
    rows = max(1, BAND_PIXELS // image.width)
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _over_white(image: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", image.size, "white")
    for top, band in _bands(image):
        # Straight to RGBA: Pillow resolves tRNS bytes, a tRNS index and a color key only that way.
        rgba = band.convert("RGBA")
        canvas.paste(rgba, (0, top), mask=rgba.getchannel("A"))
    return canvas


def _from_deep(image: Image.Image) -> Image.Image:
    import numpy as np  # here, because eight-bit images never need it

    # Via "I", because numpy has no type for every 16-bit variant of Pillow.
    whole = image.mode != "F"

    def read(band: Image.Image) -> NDArray[np.float64]:
        return np.asarray(band.convert("I") if whole else band, dtype=np.float64)  # (rows, W)

    low, high = math.inf, -math.inf
    for _, band in _bands(image):
        values = read(band)
        finite = np.isfinite(values)
        low = min(low, float(values.min(where=finite, initial=math.inf)))
        high = max(high, float(values.max(where=finite, initial=-math.inf)))
    known = low <= high  # whether any value is finite
    if whole and low >= 0 and high <= _WORD:
        low, high = 0.0, float(_WORD)
    gain = 255 / (high - low) if high > low else 0.0  # a constant image becomes black
    low = low if known else 0.0
    gray = Image.new("L", image.size)
    for top, band in _bands(image):
        # Depth maps write "unknown" as NaN or infinity: NaN is drawn black, infinity at its end.
        filled = np.nan_to_num(read(band), nan=low, posinf=high, neginf=low)
        scaled = np.clip(np.rint((filled - low) * gain), 0, 255).astype(np.uint8)
        gray.paste(Image.fromarray(scaled), (0, top))
    return gray.convert("RGB")
