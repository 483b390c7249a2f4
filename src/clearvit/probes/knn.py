"""The one weighted k-nearest-neighbor classifier, of patches and of whole images.

After Hummingbird (arXiv 2306.01667) and DINO (Caron et al., ICCV 2021): cosine similarity, the k
nearest rows of a labelled bank, and votes weighted by a softmax over their similarities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 16_384  # rows of the bank that are compared at a time


def find_neighbors(
    queries: Tensor, bank: Tensor, k: int, *, exclude_self: bool = False, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Find the k most similar rows of a bank: dot products, descending, and row indices, (Q, k).

    Args:
        queries: (Q, C).
        bank: (M, C).
        k: Number of neighbors; at most M are found.
        exclude_self: The queries are the bank, and no row is its own neighbor.
        chunk: Rows of the bank at a time; memory is Q x chunk, whatever M is.
    """
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    k = min(k, len(bank) - exclude_self)
    for start in range(0, len(bank), chunk):
        products = queries @ bank[start : start + chunk].T
        if exclude_self:
            products[start : start + chunk].fill_diagonal_(-torch.inf)
        values, found = products.topk(min(k, products.shape[1]), dim=1)
        best, rows = torch.cat([best, values], dim=1), torch.cat([rows, found + start], dim=1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        rows = rows.gather(1, order)
    return best, rows


@dataclass(frozen=True)
class KNN:
    """A labelled bank that predicts by the votes of the nearest rows; see `fit_knn`."""

    bank: Tensor  # (M, C), unit length
    labels: Tensor  # (M,) classes, or (M, K) class fractions
    classes: int  # K
    k: int
    temperature: float
    chunk: int = CHUNK

    def __call__(self, features: Tensor) -> Tensor:
        """Give the probability of each class for features (N, C), (N, K)."""
        unit = F.normalize(features, dim=1)
        return self._vote(*find_neighbors(unit, self.bank, self.k, chunk=self.chunk))

    def leave_one_out(self) -> Tensor:
        """Give the probability of each class for every row of the bank by the others, (M, K)."""
        found = find_neighbors(self.bank, self.bank, self.k, exclude_self=True, chunk=self.chunk)
        return self._vote(*found)

    def _vote(self, similarities: Tensor, rows: Tensor) -> Tensor:
        weights = F.softmax(similarities / self.temperature, dim=1)
        labels = self.labels[rows]
        if labels.dim() == 3:
            return torch.einsum("qk,qkc->qc", weights, labels)
        return weights.new_zeros(len(weights), self.classes).scatter_add_(1, labels, weights)


def fit_knn(
    features: Tensor, labels: Tensor, *, classes: int | None = None, k: int, temperature: float
) -> KNN:
    """Make a k-nearest-neighbor classifier of labelled features.

    Args:
        features: (M, C); compared by their cosine.
        labels: Class of each row from 0, (M,), or class fractions, (M, K).
        classes: Number of classes K; counted in the labels if None.
        k: Number of neighbors that vote.
        temperature: A vote weighs softmax(cosine / temperature).
    """
    if classes is None:
        classes = labels.shape[1] if labels.dim() == 2 else int(labels.max()) + 1
    return KNN(F.normalize(features, dim=1), labels, classes, k, temperature)
