"""Classes of whole images from frozen tokens: neighbours, linear probe, prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.dense.features import Features
from clearvit.dense.linear import fit_logistic
from clearvit.dense.neighbours import nearest, vote
from clearvit.dense.splits import LabelSplit
from clearvit.errors import ImageError, ModelError

Pooled = Literal["class", "mean", "both"]
Method = Literal["knn", "linear", "prototypes"]

TRAINED = 0.8  # share of a class to learn from where a folder has no splits


def pooled(features: Features, kind: Pooled | None, *, model: str, batch: int = 64) -> Tensor:
    """One vector per image, (M, C) or (M, 2 C): class token, mean of the patches, or both."""
    parts = []
    for start in range(0, len(features), batch):
        tokens = features.tokens(range(start, min(start + batch, len(features))))
        mean = tokens.patches.float().mean(1)
        if tokens.cls is None and kind not in (None, "mean"):
            raise ModelError(f"'{model}' has no class token. Use features='mean'.")
        if tokens.cls is None or kind == "mean":
            parts.append(mean)
        elif kind == "both":
            parts.append(torch.cat([tokens.cls.float(), mean], dim=1))
        else:
            parts.append(tokens.cls.float())
    return torch.cat(parts)


def knn(
    train: Tensor, labels: Tensor, test: Tensor, *, classes: int, k: int, temperature: float
) -> Tensor:
    """Predict by the k nearest images in cosine, with weighted votes, (V,)."""
    unit, queries = F.normalize(train, dim=1), F.normalize(test, dim=1)
    similarities, places = nearest(queries, unit, k)
    votes = F.one_hot(labels, classes).float()[places]
    return vote(similarities, votes, temperature).argmax(1)


def linear(train: Tensor, labels: Tensor, test: Tensor, *, classes: int, penalty: float) -> Tensor:
    """Predict by logistic regression on standardised features, (V,)."""
    head = fit_logistic(train, labels, classes, penalty=penalty)
    return head(test).argmax(1)


def prototypes(train: Tensor, labels: Tensor, test: Tensor, *, classes: int) -> Tensor:
    """Predict the class whose mean direction is nearest in cosine, (V,)."""
    unit = F.normalize(train, dim=1)
    sums = torch.zeros(classes, train.shape[1]).index_add_(0, labels, unit)
    return (F.normalize(test, dim=1) @ F.normalize(sums, dim=1).T).argmax(1)


def predict(
    method: Method,
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    penalty: float = 1e-3,
) -> Tensor:
    """Predict classes of test features (V, C) by one of the methods, (V,)."""
    if method == "knn":
        return knn(train, labels, test, classes=classes, k=k, temperature=temperature)
    if method == "linear":
        return linear(train, labels, test, classes=classes, penalty=penalty)
    return prototypes(train, labels, test, classes=classes)


def drawn_by_class(
    labels: Sequence[int], wanted: int | None, seed: int, *, rest: bool = False
) -> list[int]:
    """Draw `wanted` images of each class, ascending.

    Args:
        labels: Class of each image.
        wanted: Images per class; None takes all, or 80 % if there must be a rest.
        seed: Of the draw; with one seed, fewer are a part of more.
        rest: Leave at least one image of each class.
    """
    chance = np.random.default_rng(seed)
    values = np.asarray(labels)
    found: list[int] = []
    for kind in np.unique(values):
        members = chance.permutation(np.flatnonzero(values == kind))
        count = len(members) if wanted is None else wanted
        if rest:
            if len(members) < 2:
                raise ImageError(
                    f"class {kind} has one image; two are needed to learn and to test."
                )
            count = round(TRAINED * len(members)) if wanted is None else wanted
            count = min(max(count, 1), len(members) - 1)
        found += [int(i) for i in members[:count]]
    return sorted(found)


def aligned(split: LabelSplit, classes: Sequence[str]) -> LabelSplit:
    """Number the classes of a split as another split does."""
    place = {kind: i for i, kind in enumerate(classes)}
    for path, label in zip(split.images, split.labels, strict=True):
        if split.classes[label] not in place:
            raise ImageError(
                f"'{path}' is of class '{split.classes[label]}', which has no training image."
            )
    labels = tuple(place[split.classes[label]] for label in split.labels)
    return LabelSplit(split.name, split.root, split.images, labels, tuple(classes))
