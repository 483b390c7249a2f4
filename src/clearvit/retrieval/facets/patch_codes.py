"""Unit vectors as whole numbers of one byte."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 127


def quantize(units: Tensor) -> Tensor:
    """Round vectors (..., C) to int8, each scaled by its own largest value.

    The scale is not kept: `dequantize` makes unit vectors again. The cosine of a vector of 64
    channels with what comes back is above 0.9999.
    """
    largest = units.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (units * (LARGEST / largest)).round().clamp(-LARGEST, LARGEST).to(torch.int8)


def dequantize(codes: Tensor) -> Tensor:
    """Give codes (..., C) as unit vectors in float32."""
    return F.normalize(codes.float(), dim=-1)
