"""Images to search among, who asks, and which answers are right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearvit.images import Picture


@dataclass(frozen=True)
class Collection:
    """A data set for retrieval.

    With `labels` every image of the gallery asks for the others of its class. Without, `asking`
    are images of their own, and `positives` names the right answers of each by place.
    """

    layout: str
    root: Path
    gallery: tuple[Path, ...]
    labels: tuple[int, ...] = ()
    asking: tuple[Path, ...] = ()
    positives: tuple[tuple[int, ...], ...] = ()

    @property
    def among(self) -> bool:
        """Whether the queries are images of the gallery."""
        return bool(self.labels)

    @property
    def images(self) -> tuple[Path, ...]:
        """All images, the gallery first."""
        return self.gallery + self.asking

    @property
    def pictures(self) -> list[Picture]:
        """All images under names relative to the folder."""
        return [
            Picture((p.relative_to(self.root) if p.is_relative_to(self.root) else p).as_posix(), p)
            for p in self.images
        ]

    @property
    def queries(self) -> int:
        """How many images ask."""
        return len(self.gallery) if self.among else len(self.asking)

    def place(self, query: int) -> int:
        """Where a query stands in `images`."""
        return query if self.among else len(self.gallery) + query

    def right(self, queries: Tensor) -> Tensor:
        """How many right answers each query has, itself not counted, (Q,)."""
        if not self.among:
            return torch.tensor([len(self.positives[int(q)]) for q in queries])
        _, group, members = torch.tensor(self.labels).unique(
            return_inverse=True, return_counts=True
        )
        return members[group[queries]] - 1  # type: ignore[no-any-return]

    def relevant(self, queries: Tensor, order: Tensor) -> Tensor:
        """Whether the answers are right: order (Q, M) of places in the gallery -> (Q, M) bool."""
        if self.among:
            labels = torch.tensor(self.labels)
            return labels[order] == labels[queries][:, None]
        found = torch.zeros(order.shape, dtype=torch.bool)
        for row, query in enumerate(queries.tolist()):
            found[row] = torch.isin(order[row], torch.tensor(self.positives[query]))
        return found
