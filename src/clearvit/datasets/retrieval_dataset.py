"""A data set for image retrieval: the gallery, the queries and the positives of each query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearvit.datasets.splits import sources_of
from clearvit.images import ImageSource


@dataclass(frozen=True)
class RetrievalDataset:
    """A data set for retrieval.

    With `labels` every gallery image is also a query, for the others of its class. Without them
    the queries are images of their own, and `positives` holds the gallery indices of each.
    """

    layout: str
    root: Path
    gallery: tuple[Path, ...]
    labels: tuple[int, ...] = ()
    queries: tuple[Path, ...] = ()
    positives: tuple[tuple[int, ...], ...] = ()

    @property
    def queries_in_gallery(self) -> bool:
        """Whether the queries are images of the gallery."""
        return bool(self.labels)

    @property
    def images(self) -> tuple[Path, ...]:
        """All images, the gallery first."""
        return self.gallery + self.queries

    @property
    def sources(self) -> list[ImageSource]:
        """All images under names relative to the folder."""
        return sources_of(self.images, self.root)

    @property
    def num_queries(self) -> int:
        """Number of queries."""
        return len(self.gallery) if self.queries_in_gallery else len(self.queries)

    def query_index(self, query: int) -> int:
        """Index of a query in `images`."""
        return query if self.queries_in_gallery else len(self.gallery) + query

    def count_positives(self, queries: Tensor) -> Tensor:
        """Count the positives of each query, itself apart, (Q,) indices -> (Q,)."""
        if not self.queries_in_gallery:
            return torch.tensor([len(self.positives[int(q)]) for q in queries])
        _, group, members = torch.tensor(self.labels).unique(
            return_inverse=True, return_counts=True
        )
        return members[group[queries]] - 1  # type: ignore[no-any-return]

    def relevant(self, queries: Tensor, order: Tensor) -> Tensor:
        """Mark the positives in ranked lists, order (Q, M) of gallery indices -> (Q, M) bool."""
        if self.queries_in_gallery:
            labels = torch.tensor(self.labels)
            return labels[order] == labels[queries][:, None]
        found = torch.zeros(order.shape, dtype=torch.bool)
        for row, query in enumerate(queries.tolist()):
            found[row] = torch.isin(order[row], torch.tensor(self.positives[query]))
        return found
