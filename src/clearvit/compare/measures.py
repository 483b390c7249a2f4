"""The numbers of the table, as functions of tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.07  # of the votes: DINO's protocol, Caron et al., ICCV 2021


def cosine_distances(patches: Tensor, reference: Tensor) -> Tensor:
    """Average 1 - cosine over the patches of each image, (B, N, C) twice -> (B,) float64."""
    cosine = F.cosine_similarity(patches.double(), reference.double(), dim=-1)
    return 1 - cosine.mean(dim=-1)


def gap_closed(raw: float, model: float, target: float) -> float | None:
    """Tell how far a model went from `raw` to `target`: (raw - model) / (raw - target).

    0 is as far from the reference as the raw model, 1 as near as the target; more than 1 is nearer
    and less than 0 farther. None if the target is no nearer than the raw model: there is no gap.
    """
    gap = raw - target
    return (raw - model) / gap if gap > 1e-12 else None


def agreement(summaries: Tensor, others: Tensor) -> float:
    """Average the cosine between two descriptions of the same images, (I, C) twice -> -1..1."""
    cosine = F.cosine_similarity(summaries.double(), others.double(), dim=-1)
    return float(cosine.mean())


def neighbour_accuracy(summaries: Tensor, labels: Tensor, k: int = 1) -> float:
    """Classify every image by its k nearest others; share of right answers, 0..1.

    Args:
        summaries: One description per image, (I, C), compared by their cosine.
        labels: Class of each image from 0, (I,).
        k: Neighbours that vote; a vote weighs exp(cosine / 0.07).
    """
    unit = F.normalize(summaries.double(), dim=-1)
    similarity = (unit @ unit.T).fill_diagonal_(-torch.inf)  # an image may not vote for itself
    nearest = similarity.topk(min(k, len(unit) - 1), dim=1)
    weights = ((nearest.values - 1) / TEMPERATURE).exp()
    votes = torch.zeros(len(unit), int(labels.max()) + 1, dtype=torch.float64)
    votes.scatter_add_(1, labels[nearest.indices], weights)
    return float((votes.argmax(dim=1) == labels).double().mean())
