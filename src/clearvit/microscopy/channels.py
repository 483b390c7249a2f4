"""Tokens as a few int8 channels from which a browser computes cosines.

Tokens are scaled to unit length, so that a dot product is a cosine, and projected on K orthonormal
directions: their mean direction, then the principal components of what is left. With c the K
coordinates of a token and r what they leave out, the cosine of two tokens is c . d + r . s. The
first part is known. The second is not, but it is small between different contents and grows as
tokens become alike, so it is estimated as |r| |s| max(0, cos(c, d))^8: a token then has cosine 1
with itself. The exponent was the best or close to it for tokens, keys, queries and values of early
and late blocks of a DINOv2; without it the largest error is 1.4 to 3.4 times as large.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.errors import ModelError
from clearvit.report.pca import ROBUST

EXPONENT = 8
STEP = 0.01  # of a channel of unit tokens, at least; finer steps cost bytes and gain nothing
LEVELS = 127  # int8 without -128
FITTED = 40_000  # tokens on which a basis is fitted
QUERIES = 32  # tokens of each image whose cosines are checked


@dataclass(frozen=True)
class Basis:
    """Directions on which unit tokens are projected."""

    directions: Tensor  # (C, K), orthonormal columns; the first is the mean direction
    low: Tensor  # (3,) of channels 1 to 3, which becomes 0 in the colors
    high: Tensor  # (3,), which becomes 1

    @property
    def count(self) -> int:
        """The number of channels K."""
        return self.directions.shape[1]


@dataclass(frozen=True)
class Channels:
    """The tokens of one image, N of them, as K channels: offset + scale * values."""

    offset: Tensor  # (K,) float32
    scale: Tensor  # (K,) float32
    values: Tensor  # (K, N) int8

    def coordinates(self) -> Tensor:
        """Give the coordinates as the browser computes them, (N, K) float64."""
        return (self.offset[:, None] + self.scale[:, None] * self.values).T.double()

    def to_bytes(self) -> bytes:
        """Lay offsets, scales and values out one after the other, little-endian."""
        floats = torch.cat([self.offset, self.scale]).numpy().astype("<f4").tobytes()
        return floats + self.values.contiguous().numpy().tobytes()


@dataclass(frozen=True)
class CosineError:
    """How far cosines of channels lie from those of the tokens, over many pairs."""

    rms: float
    most: float  # 95 % of the pairs are closer than this
    largest: float
    pairs: int


def fit_basis(tokens: list[Tensor], channels: int) -> Basis:
    """Fit directions on tokens of several images, each (N, C).

    Raises:
        ModelError: Some tokens are not finite.
    """
    pooled = unit_tokens(torch.cat(tokens)[:: -(-sum(map(len, tokens)) // FITTED)])
    mean = pooled.mean(0)
    first = mean / mean.norm().clamp(min=1e-12)
    rest = pooled - (pooled @ first)[:, None] * first
    spread = rest.T @ rest / len(rest)
    vectors = torch.linalg.eigh(spread).eigenvectors.flip(1)
    # without a mean direction, as of tokens that cancel each other, only the components are left
    parts = [first[:, None], vectors] if float(first.norm()) > 0.5 else [vectors]
    kept = torch.cat(parts, 1)[:, : min(channels, pooled.shape[1])]
    # of fewer tokens than channels, some components are arbitrary and may hold the mean direction
    kept = torch.linalg.qr(kept).Q
    signs = kept.gather(0, kept.abs().argmax(0)[None]).sign()  # arbitrary, so fixed
    directions = kept * torch.where(signs == 0, 1.0, signs)
    colored = pooled @ directions[:, 1:4]
    low, high = (torch.quantile(colored, level, dim=0) for level in ROBUST)
    return Basis(directions, low, high)


def unit_tokens(tokens: Tensor) -> Tensor:
    """Scale tokens (..., C) to unit length, in float64."""
    values = tokens.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise ModelError(
            "some tokens hold NaN or infinity, so they cannot be shown; half precision often does"
            " this: run the model in float32."
        )
    units: Tensor = values / values.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return units


def encode_channels(tokens: Tensor, basis: Basis) -> Channels:
    """Project the tokens of one image, (N, C), and round them to int8; nothing is cut off."""
    projected = unit_tokens(tokens) @ basis.directions
    low, high = projected.min(0).values, projected.max(0).values
    offset = ((low + high) / 2).float()
    scale = ((high - low) / (2 * LEVELS)).clamp(min=STEP).float()
    values = ((projected - offset) / scale).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return Channels(offset, scale, values.T)


def estimate_cosines(queries: Tensor, others: Tensor) -> Tensor:
    """Estimate the cosines of tokens from their coordinates, (Q, K) and (N, K) -> (Q, N)."""
    known = queries @ others.T
    lengths = [part.norm(dim=1).clamp(min=1e-12) for part in (queries, others)]
    rests = [(1 - length**2).clamp(min=0).sqrt() for length in lengths]
    alike = (known / lengths[0][:, None] / lengths[1]).clamp(0, 1) ** EXPONENT
    cosines: Tensor = (known + rests[0][:, None] * rests[1] * alike).clamp(-1, 1)
    return cosines


def measure_error(tokens: list[Tensor], basis: Basis) -> CosineError:
    """Compare cosines in the channels with those of the tokens themselves.

    Some tokens of every image are compared with all tokens of that image and of the next one.
    """
    units = [unit_tokens(own) for own in tokens]
    coded = [encode_channels(own, basis).coordinates() for own in tokens]
    errors = []
    for i in range(len(units)):
        chosen = torch.linspace(0, len(units[i]) - 1, min(QUERIES, len(units[i]))).long()
        for j in {i, (i + 1) % len(units)}:
            exact = units[i][chosen] @ units[j].T
            errors.append((estimate_cosines(coded[i][chosen], coded[j]) - exact).abs().flatten())
    found = torch.cat(errors)
    ranked = found.sort().values
    return CosineError(
        rms=float(found.square().mean().sqrt()),
        most=float(ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]),
        largest=float(ranked[-1]),
        pairs=len(found),
    )
