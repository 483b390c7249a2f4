"""Classes of whole images from frozen tokens: kNN, linear probe, prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.datasets.splits import LabelSplit
from clearvit.errors import ImageError, ModelError
from clearvit.probes.config import ClassificationMethod, Pooling
from clearvit.probes.features import Features
from clearvit.probes.knn import fit_knn
from clearvit.probes.linear import fit_logistic

TRAIN_FRACTION = 0.8  # of each class, where a folder has no splits


def pool_features(
    features: Features, pooling: Pooling | None, *, model: str, batch: int = 64
) -> Tensor:
    """Give one vector per image, (M, C) or (M, 2 C): class token, mean of the patches, or both."""
    parts = []
    for start in range(0, len(features), batch):
        tokens = features.tokens(range(start, min(start + batch, len(features))))
        mean = tokens.patches.float().mean(1)
        if tokens.cls is None and pooling not in (None, "mean"):
            raise ModelError(f"'{model}' has no class token. Use pooling='mean'.")
        if tokens.cls is None or pooling == "mean":
            parts.append(mean)
        elif pooling == "both":
            parts.append(torch.cat([tokens.cls.float(), mean], dim=1))
        else:
            parts.append(tokens.cls.float())
    return torch.cat(parts)


@dataclass(frozen=True)
class Classifier:
    """A way to classify images from labelled features."""

    method: ClassificationMethod
    classes: int
    k: int = 20  # neighbors of "knn"
    temperature: float = 0.07  # of the votes of "knn"
    penalty: float = 1e-3  # of "linear", on the weights for standardized features

    def predict(self, train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
        """Predict the classes of test features (V, C) from labelled features (M, C), (V,)."""
        if self.method == "knn":
            options = {"classes": self.classes, "k": self.k}
            return fit_knn(train, labels, temperature=self.temperature, **options)(test).argmax(1)
        if self.method == "linear":
            head = fit_logistic(train, labels, self.classes, penalty=self.penalty)
            return head(test).argmax(1)
        return predict_by_prototypes(train, labels, test, self.classes)


def predict_by_prototypes(train: Tensor, labels: Tensor, test: Tensor, classes: int) -> Tensor:
    """Predict the class whose mean direction is nearest in cosine, (V,)."""
    unit = F.normalize(train, dim=1)
    sums = torch.zeros(classes, train.shape[1]).index_add_(0, labels, unit)
    return (F.normalize(test, dim=1) @ F.normalize(sums, dim=1).T).argmax(1)


def sample_per_class(
    labels: Sequence[int], count: int | None, seed: int, *, leave_rest: bool = False
) -> list[int]:
    """Sample `count` images of each class, indices ascending.

    Args:
        labels: Class of each image.
        count: Images per class; None takes all, or 80 % if some must be left to test on.
        seed: Seed of the sample; with one seed, smaller samples are part of larger ones.
        leave_rest: Leave at least one image of each class out.
    """
    rng = np.random.default_rng(seed)
    values = np.asarray(labels)
    chosen: list[int] = []
    for label in np.unique(values):
        members = rng.permutation(np.flatnonzero(values == label))
        size = len(members) if count is None else count
        if leave_rest:
            if len(members) < 2:
                raise ImageError(
                    f"class {label} has one image; two are needed, to learn from and to test on."
                )
            size = round(TRAIN_FRACTION * len(members)) if count is None else count
            size = min(max(size, 1), len(members) - 1)
        chosen += [int(i) for i in members[:size]]
    return sorted(chosen)


def align_classes(split: LabelSplit, classes: Sequence[str]) -> LabelSplit:
    """Number the classes of a split as another split does."""
    index = {name: i for i, name in enumerate(classes)}
    for path, label in zip(split.images, split.labels, strict=True):
        if split.classes[label] not in index:
            raise ImageError(
                f"'{path}' is of class '{split.classes[label]}', which has no training image."
            )
    labels = tuple(index[split.classes[label]] for label in split.labels)
    return LabelSplit(split.name, split.root, split.images, labels, tuple(classes))
