"""Places as a training sees them: queries with positives within 25 m, or known pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.errors import TrainingError
from clearvit.training.order import BatchOrder, seeded_generator

BLOCKS = 12  # runs of neighboring queries that are held out together
RECALLS = (1, 5)
LEAST = 4  # queries


@dataclass(frozen=True)
class PairOrder(BatchOrder):
    """Batches of queries, each followed by one of its positives."""

    queries: tuple[int, ...] = ()
    positives: tuple[tuple[int, ...], ...] = ()  # of these queries, as images

    def images(self, step: int) -> list[int]:
        """List the images of a step: a query, its positive, the next query, its positive."""
        rng = seeded_generator(self.seed, step)
        found: list[int] = []
        for one in torch.randperm(len(self.queries), generator=rng)[: self.batch // 2].tolist():
            own = self.positives[one]
            found += [self.queries[one], own[int(torch.randint(len(own), (1,), generator=rng))]]
        return found


class PlaceImages:
    """Queries with their positives in a gallery.

    The groups that are held out together are runs of neighboring queries, since frames beside each
    other show one place; gallery images that are positives of a held-out query do not train.
    """

    metrics: ClassVar[tuple[str, str]] = ("R@1", "R@5")
    words: ClassVar[str] = "runs of queries"

    def __init__(self, data: RetrievalDataset) -> None:
        self.sources, self.gallery = data.sources, len(data.gallery)
        self.positives = [set(found) for found in data.positives]
        if len(self.positives) < LEAST:
            raise TrainingError(
                f"'{data.root}' has {len(self.positives)} queries with a positive; at least {LEAST}"
                " are needed, because some are held out to judge."
            )
        self.groups = min(BLOCKS, len(self.positives))
        self.block = torch.arange(len(self.positives)) * self.groups // len(self.positives)

    def queries(self, groups: Sequence[int]) -> list[int]:
        """List the queries of some runs, from 0."""
        return torch.isin(self.block, torch.tensor(list(groups))).nonzero().flatten().tolist()

    def members(self, groups: Sequence[int]) -> list[int]:
        """List the images that judge some runs: their queries, then the whole gallery."""
        queries = [self.gallery + one for one in self.queries(groups)]
        return [*queries, *range(self.gallery)]

    def order(self, groups: Sequence[int], classes: int, per_class: int, seed: int) -> BatchOrder:
        """Make batches of pairs of some runs, `classes` pairs each."""
        pairs = self._pairs(groups)
        batch = 2 * min(classes, len(pairs))
        steps = max(1, len(pairs) * 2 // batch)
        queries = tuple(self.gallery + query for query, _ in pairs)
        own = tuple(positives for _, positives in pairs)
        return PairOrder(steps * batch, batch, seed, queries, own)

    def _pairs(self, groups: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        others = [g for g in range(self.groups) if g not in groups]
        taken: set[int] = set().union(*(self.positives[q] for q in self.queries(others)))
        pairs = [(q, tuple(sorted(self.positives[q] - taken))) for q in self.queries(groups)]
        pairs = [(query, own) for query, own in pairs if own]
        if len(pairs) < 2:
            raise TrainingError(
                "nearly all training queries share their positives with held-out ones; give a"
                " longer traverse, or fewer --folds."
            )
        return pairs

    def batch_labels(self, images: Sequence[int]) -> Tensor:
        """Mark which gallery images of a batch are positives of which query, (B / 2, B / 2)."""
        queries, chosen = images[::2], images[1::2]
        rows = [[one in self.positives[q - self.gallery] for one in chosen] for q in queries]
        return torch.tensor(rows)

    def differences(self, vectors: Tensor, groups: Sequence[int]) -> Tensor:
        """Give the differences of queries from their positives, (M, C), of vectors (N, C)."""
        parts = [vectors[list(own)] - vectors[self.gallery + q] for q, own in self._pairs(groups)]
        return torch.cat(parts) / 2**0.5

    def judge(self, vectors: Tensor, groups: Sequence[int]) -> Tensor:
        """Search the queries of some runs in the gallery, (len(groups), 2) in 0..1.

        Args:
            vectors: Of the images that `members` lists, (M, D).
            groups: The runs; a row of the result is the mean over one of them.
        """
        queries = self.queries(groups)
        unit = F.normalize(vectors.float(), dim=1)
        nearest = (unit[: len(queries)] @ unit[len(queries) :].T).topk(
            min(max(RECALLS), self.gallery), dim=1
        )
        hits = torch.tensor(
            [
                [any(i in self.positives[q] for i in row[:k]) for k in RECALLS]
                for q, row in zip(queries, nearest.indices.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )
        blocks = self.block[queries]
        return torch.stack([hits[blocks == one].mean(0) for one in groups])
