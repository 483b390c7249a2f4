"""Any Pillow mode to RGB, the way a person would expect to see the image."""

from __future__ import annotations

import math

from PIL import Image

_ALPHA_MODES = frozenset({"LA", "PA", "RGBA"})
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
_WORD = 65535  # the largest value of a 16-bit channel


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


def _over_white(image: Image.Image) -> Image.Image:
    # Straight to RGBA: Pillow resolves tRNS bytes, a tRNS index and a color key only on that way.
    rgba = image.convert("RGBA")
    canvas = Image.new("RGB", rgba.size, "white")
    canvas.paste(rgba, mask=rgba.getchannel("A"))
    return canvas


def _from_deep(image: Image.Image) -> Image.Image:
    import numpy as np  # here, because eight-bit images never need it

    # Via "I", because numpy has no type for every 16-bit variant of Pillow.
    whole = image.mode != "F"
    values = np.asarray(image.convert("I") if whole else image, dtype=np.float64)  # (H, W)
    finite = np.isfinite(values)
    low = float(values.min(where=finite, initial=math.inf))
    high = float(values.max(where=finite, initial=-math.inf))
    if whole and low >= 0 and high <= _WORD:
        low, high = 0.0, float(_WORD)
    gain = 255 / (high - low) if high > low else 0.0  # a constant image becomes black
    # Depth maps write "unknown" as NaN or infinity: NaN is drawn black, infinity at its end.
    low = low if finite.any() else 0.0
    known = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    gray = np.clip(np.rint((known - low) * gain), 0, 255).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB")
