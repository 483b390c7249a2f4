"""A planted collection of images: descriptors, patches and labels made of noise around classes."""

import torch
import torch.nn.functional as F

from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.ranking_metrics import retrieval_metrics


def planted_collection(
    classes=9, members=5, cells=9, channels=96, global_noise=0.5, local_noise=0.5
):
    """Unit descriptors (N, C), local features of the same images, and labels (N,)."""
    labels = torch.arange(classes).repeat_interleave(members)
    centers, parts = torch.randn(classes, channels), torch.randn(classes, cells, channels)
    noise = torch.randn(len(labels), channels)
    descriptors = F.normalize(centers[labels] + global_noise * noise, dim=-1)
    local = parts[labels] + local_noise * torch.randn(len(labels), cells, channels)
    return descriptors, LocalFeatures(F.normalize(local, dim=-1)), labels


def without_diagonal(descriptors):
    """Cosines (N, N) in which no image finds itself."""
    return (descriptors @ descriptors.T).fill_diagonal_(-torch.inf)


def map_at_r(ranking, labels):
    """MAP@R of re-ranked lists."""
    return retrieval_metrics(ranking.order, labels).map_at_r
