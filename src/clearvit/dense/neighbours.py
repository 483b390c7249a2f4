"""Dense nearest neighbours: label patches by the labelled patches most like them, no training.

After Hummingbird (arXiv 2306.01667): cosine, the k nearest patches of a bank, and votes weighted by
a softmax over their similarities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def nearest(queries: Tensor, bank: Tensor, k: int, *, chunk: int = 16_384) -> tuple[Tensor, Tensor]:
    """Find the k most similar rows of a bank, (Q, k): dot products, falling, and indices.

    Args:
        queries: (Q, C).
        bank: (M, C).
        k: Neighbours; at most M are found.
        chunk: Rows of the bank at a time; memory is Q x chunk, whatever M is.
    """
    best = torch.empty(len(queries), 0)
    places = torch.empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(bank), chunk):
        products = queries @ bank[start : start + chunk].T
        values, found = products.topk(min(k, products.shape[1]), dim=1)
        best = torch.cat([best.to(values), values], dim=1)
        places = torch.cat([places.to(found.device), found + start], dim=1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        places = places.gather(1, order)
    return best, places


def vote(similarities: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Average labels (Q, k, K) with weights softmax(similarities / temperature), (Q, K)."""
    weights = F.softmax(similarities / temperature, dim=1)
    return torch.einsum("qk,qkc->qc", weights, labels)


@dataclass(frozen=True)
class Bank:
    """Labelled patches that others are compared with."""

    tokens: Tensor  # (M, C), unit length
    labels: Tensor  # (M, K), shares of the classes
    neighbours: int = 30
    temperature: float = 0.02
    chunk: int = 16_384

    @staticmethod
    def build(tokens: Tensor, labels: Tensor, *, neighbours: int, temperature: float) -> Bank:
        """Make a bank of patch tokens (M, C) and class shares (M, K)."""
        return Bank(F.normalize(tokens, dim=1), labels, neighbours, temperature)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Share of each class among the neighbours of patches (N, C), (N, K)."""
        unit = F.normalize(tokens, dim=1)
        similarities, places = nearest(unit, self.tokens, self.neighbours, chunk=self.chunk)
        return vote(similarities, self.labels[places], self.temperature)
