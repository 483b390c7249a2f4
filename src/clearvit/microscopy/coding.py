"""Numbers as the bytes that the page decodes; `web/src/decode.ts` is the other side."""

from __future__ import annotations

import base64
import io
import zlib

import numpy as np
import torch
from PIL import Image
from torch import Tensor

NORM_RANGE = 4.0  # log2 of norm / median lies in -4..4
ATTENTION_RANGE = 8.0  # log2 of attention / an even share lies in -8..8
LARGEST_PHOTO = 640  # pixels of the longer side
MANY = 24  # images, from which on photos are smaller
QUALITY = 82  # of JPEG


def pack(content: bytes) -> str:
    """Compress bytes and write them as text."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


def encode_norms(norms: Tensor) -> tuple[bytes, list[float]]:
    """Round norms (L, N) to uint8 on a logarithmic scale; bytes, and the median of each block.

    A step is 2.2 %, so a norm is off by 1.1 % at most within 1/16 to 16 times the median.
    """
    medians = norms.median(dim=1).values.clamp(min=1e-12)
    logs = (norms / medians[:, None]).clamp(min=1e-12).log2()
    codes = ((logs + NORM_RANGE) / (2 * NORM_RANGE) * 255).round().clamp(0, 255)
    return _bytes(codes), [float(f"{value:.6g}") for value in medians.tolist()]


def encode_attention(attention: Tensor) -> bytes:
    """Round multiples of an even share to uint8 on a logarithmic scale; 0 is less than 1 / 256.

    A step is 4.5 %, so a value is off by 2.2 % at most.
    """
    logs = attention.clamp(min=1e-12).log2()
    codes = ((logs + ATTENTION_RANGE) / (2 * ATTENTION_RANGE) * 254).round().clamp(-1, 254) + 1
    return _bytes(codes)


def encode_photo(image: Image.Image, images: int) -> str:
    """Write an upright RGB image as a JPEG of moderate size, base64."""
    side = LARGEST_PHOTO if images <= MANY else LARGEST_PHOTO * 2 // 3
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _bytes(codes: Tensor) -> bytes:
    return bytes(codes.to(torch.uint8).contiguous().numpy().astype(np.uint8).tobytes())
