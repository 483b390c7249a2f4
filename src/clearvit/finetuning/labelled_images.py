"""Images with classes as a training sees them: who trains, who judges, how a batch is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.errors import TrainingError
from clearvit.retrieval.ranking_metrics import per_query_metrics
from clearvit.training.order import BatchOrder, seeded_generator

LEAST = 2  # images of a class, and classes in each part


@dataclass(frozen=True)
class ClassOrder(BatchOrder):
    """Batches that hold `per_class` images of each of several classes."""

    images_of: tuple[tuple[int, ...], ...] = ()  # images of each class that trains
    per_class: int = 4

    def images(self, step: int) -> list[int]:
        """List the images of a step: classes and images are drawn anew, by seed and step."""
        rng = seeded_generator(self.seed, step)
        chosen = torch.randperm(len(self.images_of), generator=rng)[: self.batch // self.per_class]
        found: list[int] = []
        for one in chosen.tolist():
            members = self.images_of[one]
            repeats = -(-self.per_class // len(members))
            order = torch.randperm(len(members), generator=rng).repeat(repeats)
            found += [members[i] for i in order[: self.per_class].tolist()]
        return found


class LabelledImages:
    """Images of K classes. The groups that are held out together are classes."""

    metrics: ClassVar[tuple[str, str]] = ("P@1", "MAP@R")
    words: ClassVar[str] = "classes"

    def __init__(self, data: RetrievalDataset) -> None:
        self.sources = data.sources
        _, numbers = torch.unique(torch.tensor(data.labels), return_inverse=True)
        self.labels: Tensor = numbers
        self.groups = int(numbers.max()) + 1 if len(numbers) else 0
        counts = torch.bincount(numbers)
        if self.groups < 2 * LEAST:
            raise TrainingError(
                f"'{data.root}' has {self.groups} classes; at least {2 * LEAST} are needed, because"
                " some are held out to judge."
            )
        if int(counts.min()) < LEAST:
            raise TrainingError(
                f"a class of '{data.root}' has one image; every class needs at least {LEAST}."
            )

    def members(self, groups: Sequence[int]) -> list[int]:
        """List the images of some classes."""
        return torch.isin(self.labels, torch.tensor(list(groups))).nonzero().flatten().tolist()

    def order(self, groups: Sequence[int], classes: int, per_class: int, seed: int) -> BatchOrder:
        """Make batches of the images of some classes."""
        images_of = tuple(tuple(self.members([one])) for one in groups)
        batch = min(classes, len(groups)) * per_class
        steps = max(1, sum(map(len, images_of)) // batch)
        return ClassOrder(steps * batch, batch, seed, images_of, per_class)

    def batch_labels(self, images: Sequence[int]) -> Tensor:
        """Give what the loss has to know of some images: their classes, (B,)."""
        return self.labels[list(images)]

    def differences(self, vectors: Tensor, groups: Sequence[int]) -> Tensor:
        """Give the vectors (N, C) of some classes less the mean of their class, (M, C)."""
        parts = [vectors[self.members([one])] for one in groups]
        return torch.cat([part - part.mean(0) for part in parts])

    def judge(self, vectors: Tensor, groups: Sequence[int]) -> Tensor:
        """Search each image of some classes among the others of them, (len(groups), 2) in 0..1.

        Args:
            vectors: Of the images of these classes in order, as `members` lists them, (M, D).
            groups: The classes; a row of the result is the mean over one of them.
        """
        labels = self.labels[self.members(groups)]
        unit = F.normalize(vectors.float(), dim=1)
        similar = unit @ unit.T
        similar.fill_diagonal_(-torch.inf)
        order = similar.argsort(dim=1, descending=True)[:, :-1]
        relevant = labels[order] == labels[:, None]
        found = per_query_metrics(relevant, relevant.sum(1))[:, [0, 2]]
        return torch.stack([found[labels == one].mean(0) for one in groups])
