"""Measures of a ranking: P@1, R-Precision, MAP@R and Recall@k, as means over queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from clearvit.errors import ModelError, closest

Convention = Literal["standard", "diml"]
CONVENTIONS = ("standard", "diml")


@dataclass(frozen=True)
class RetrievalMetrics:
    """Means over the queries, 0..1, and what they are means of."""

    precision_at_1: float
    r_precision: float
    map_at_r: float
    recall: dict[int, float] = field(repr=False)  # fraction of queries with a hit among the first k
    per_query: Tensor = field(repr=False)  # (Q, 3): P@1, RP, MAP@R; NaN for a query left out
    queries: int  # that the means are over
    without_match: int  # queries whose class has no other member
    convention: Convention


def retrieval_metrics(
    order: Tensor,
    labels: Tensor,
    convention: Convention = "standard",
    *,
    query_labels: Tensor | None = None,
    recall_at: Sequence[int] = (1, 5, 10),
) -> RetrievalMetrics:
    """Score rankings by class labels.

    With R relevant items, RP is their fraction among the first R, and MAP@R the mean over the first
    R ranks of the precision so far where the item is relevant. The conventions differ in R:
    "standard" (pytorch-metric-learning) counts the other members of the class and leaves out
    queries without any; "diml" (the published re-ranking codes) counts the query too, so that a
    perfect ranking stays below 1, and gives queries without a match 0.

    Args:
        order: Gallery items from best to worst, (Q, M); -1 where a list is shorter. Lists may be
            cut off, what is missing counts as a miss.
        labels: Classes of the gallery, (N,).
        convention: What R counts.
        query_labels: Classes of the queries, (Q,), if these are not in the gallery. Else query i
            is item i of the gallery, and is taken out of its own list.
        recall_at: The k of Recall@k.
    """
    if convention not in CONVENTIONS:
        raise ModelError(
            f"convention is '{convention}'; use standard or diml.{closest(convention, CONVENTIONS)}"
        )
    among = query_labels is None
    if among:
        order = drop_self(order)
    asked = labels[: len(order)] if query_labels is None else query_labels
    _check(order, labels, asked)
    relevant = (labels[order.clamp(min=0)] == asked[:, None]) & (order >= 0)
    count = (asked[:, None] == labels).sum(1) - int(among)
    return _average(relevant, count, convention, recall_at)


def _average(
    relevant: Tensor, count: Tensor, convention: Convention, recall_at: Sequence[int]
) -> RetrievalMetrics:
    """Means over queries with `count` (Q,) other members of their class."""
    counted = count + 1 if convention == "diml" else count
    per_query = per_query_metrics(relevant, counted)
    included = torch.ones_like(count, dtype=torch.bool) if convention == "diml" else count > 0
    per_query[~included] = torch.nan
    precision_at_1, r_precision, map_at_r = per_query[included].mean(0).tolist()
    return RetrievalMetrics(
        precision_at_1=precision_at_1,
        r_precision=r_precision,
        map_at_r=map_at_r,
        recall=recall_at_k(relevant[included], recall_at),
        per_query=per_query,
        queries=int(included.sum()),
        without_match=int((count == 0).sum()),
        convention=convention,
    )


def recall_at_k(relevant: Tensor, at: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """Fraction of queries with at least one relevant item among the first k.

    Args:
        relevant: Whether each item of the ranked lists is, (Q, M) bool; for place recognition,
            within 25 m of the query.
        at: The k.
    """
    return {k: float(relevant[:, :k].any(1).double().mean()) for k in at}


def drop_self(order: Tensor) -> Tensor:
    """Take query i out of its own list i, (N, M) -> (N, M - 1); lists without it stay."""
    own = order == torch.arange(len(order), device=order.device)[:, None]
    if not bool(own.any()):
        return order
    last = own.to(torch.int8).sort(dim=1, stable=True).indices
    return torch.where(own, -1, order).gather(1, last)[:, : order.shape[1] - 1]


def per_query_metrics(relevant: Tensor, counts: Tensor) -> Tensor:
    """P@1, RP and MAP@R of each query, (Q, 3).

    Args:
        relevant: Whether each item of the ranked lists is, (Q, M) bool, best first.
        counts: R of each query, (Q,).
    """
    width = min(relevant.shape[1], int(counts.max()))
    hits = relevant[:, :width].double()
    rank = torch.arange(1, width + 1, device=hits.device)
    hits_in_reach = hits * (rank <= counts[:, None])
    precision = hits.cumsum(1) / rank
    divisor = counts.clamp(min=1)
    return torch.stack(
        [
            relevant[:, 0].double(),
            hits_in_reach.sum(1) / divisor,
            (precision * hits_in_reach).sum(1) / divisor,
        ],
        dim=1,
    )


def _check(order: Tensor, labels: Tensor, query_labels: Tensor) -> None:
    if order.ndim != 2 or order.shape[1] == 0:
        raise ModelError(f"order must be (Q, M) with at least one item, not {tuple(order.shape)}.")
    if len(query_labels) != len(order):
        raise ModelError(
            f"{len(order)} ranked lists but {len(query_labels)} labels of queries; pass one label"
            " per list."
        )
    if int(order.max()) >= len(labels):
        raise ModelError(
            f"order names item {int(order.max())}, but there are {len(labels)} labels."
        )
