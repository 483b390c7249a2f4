"""Losses between embeddings by name, from pytorch-metric-learning; triplets of places."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.errors import missing_extra
from clearvit.finetuning.config import MetricLoss

# Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, as the re-ranking papers
# (DIML, Beyond the CLS Token) train: margin 0.2, a learned boundary that starts at 1.2, and
# negatives drawn with the inverse density of distances on the sphere, cut at 0.5 and 1.4.
MARGIN, BOUNDARY, NEAREST, FARTHEST = 0.2, 1.2, 0.5, 1.4
PLACE_MARGIN = 0.1  # of the triplets of places, as Beyond the CLS Token trains on MSLS


class EmbeddingLoss(nn.Module):
    """A loss with its mining; its own parameters (boundary, proxies) train with the network."""

    def __init__(self, name: MetricLoss, classes: int, width: int) -> None:
        super().__init__()
        try:
            from pytorch_metric_learning import losses, miners
        except ImportError as error:
            raise missing_extra("pytorch-metric-learning", "finetune", "finetuning") from error
        self.miner: Any = None
        if name == "margin":
            self.loss: nn.Module = losses.MarginLoss(
                margin=MARGIN, beta=BOUNDARY, learn_beta=True, num_classes=classes
            )
            self.miner = miners.DistanceWeightedMiner(cutoff=NEAREST, nonzero_loss_cutoff=FARTHEST)
        elif name == "triplet":
            self.loss = losses.TripletMarginLoss(margin=MARGIN)
            self.miner = miners.TripletMarginMiner(margin=MARGIN, type_of_triplets="semihard")
        elif name == "contrastive":
            self.loss = losses.ContrastiveLoss(pos_margin=0, neg_margin=1)
        elif name == "multi-similarity":
            self.loss = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)
            self.miner = miners.MultiSimilarityMiner(epsilon=0.1)
        else:
            self.loss = losses.ProxyAnchorLoss(classes, width)

    def forward(self, embeddings: Tensor, labels: Tensor, seed: int) -> Tensor:
        """Compute the loss of embeddings (B, C), whose labels (B,) count from 0.

        Mining is a function of the seed, so that a resumed run repeats it.
        """
        unit = F.normalize(embeddings.float(), dim=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            chosen = self.miner(unit, labels) if self.miner is not None else None
        loss: Tensor = self.loss(unit, labels, chosen)
        return loss


class PlaceTriplets(nn.Module):
    """Triplet loss of queries with the hardest negatives of the batch."""

    def __init__(self, negatives: int) -> None:
        super().__init__()
        self.negatives = negatives

    def forward(self, embeddings: Tensor, positive: Tensor, seed: int) -> Tensor:
        """Compute mean [margin + |q - p|^2 - |q - n|^2]+ over the hardest negatives n of each q.

        Args:
            embeddings: Query, positive, query, positive, …, (2 Q, C).
            positive: Which of the Q gallery images are positives of which query, (Q, Q) bool.
            seed: Not used: nothing is drawn.
        """
        unit = F.normalize(embeddings.float(), dim=1)
        queries, gallery = unit[::2], unit[1::2]
        apart = 2 - 2 * queries @ gallery.T  # squared distances
        near = apart.diagonal()[:, None]
        far = apart.masked_fill(positive, torch.inf)
        hardest = far.topk(min(self.negatives, len(far)), dim=1, largest=False).values
        terms = (PLACE_MARGIN + near - hardest).clamp(min=0)  # 0 where nothing is left
        return terms.mean()


class Distillation(nn.Module):
    """Squared distance of unit embeddings to a teacher's."""

    def forward(self, embeddings: Tensor, targets: Tensor, seed: int) -> Tensor:
        """Compare embeddings (B, D) with the teacher's (B, D); nothing is drawn by the seed."""
        apart = F.normalize(embeddings.float(), dim=1) - F.normalize(targets.float(), dim=1)
        return apart.square().sum(1).mean()
