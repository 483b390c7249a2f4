"""Options of `cv.finetune` and `clearvit finetune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clearvit.options import (
    Options,
    Precision,
    Size,
    option,
    overwrite_option,
    precision_option,
    size_option,
)
from clearvit.training.config import (
    TRAINING,
    ema_decay_option,
    grad_checkpointing_option,
    patience_option,
    weight_decay_option,
)

FinetuneTask = Literal["auto", "retrieval", "places"]
MetricLoss = Literal[
    "margin", "triplet", "contrastive", "multi-similarity", "proxy-anchor", "distill"
]
Trained = Literal["none", "low-rank", "last-2", "last-4", "all"]
FEW = 50  # classes below which three folds judge instead of one


@dataclass(frozen=True)
class FinetuneConfig(Options):
    """How to train an embedding on labelled images."""

    task: FinetuneTask = option(
        "auto",
        "What to train for: 'retrieval' brings images of one class near each other, 'places' a"
        " query near its positives; 'auto' goes by the layout of the data.",
    )
    dimension: int = option(
        128,
        "Channels of the projection behind the network, fitted before anything trains; 0 adds none"
        " and trains the class token itself.",
        minimum=0,
        maximum=65536,
    )
    unfreeze: Trained = option(
        "none",
        "What trains beside the projection: 'none' of the network, a 'low-rank' change of every"
        " matrix, the 'last-2' or 'last-4' blocks, or 'all' weights.",
    )
    rank: int = option(8, "Rank of the trained change, with 'low-rank'.", minimum=1)
    loss: MetricLoss | None = option(
        None,
        "Loss between embeddings: 'margin' with distance-weighted mining is that of the re-ranking"
        " papers, 'distill' follows --teacher, the others are those of pytorch-metric-learning.",
        shown="margin; for places triplet",
    )
    teacher: str | None = option(
        None, "Model whose descriptors 'distill' follows, such as dir:large/.", shown="none"
    )
    size: int | Size | None = size_option()
    layout: Literal["folders", "cub", "cars", "sop", "msls", "vpr"] | None = option(
        None, "Layout of the data set.", shown="detected by its files"
    )
    epochs: int | None = option(
        None,
        "Epochs to train at most; 0 keeps the projection as it was fitted.",
        panel=TRAINING,
        minimum=0,
        shown="0 with a frozen network, else 10",
    )
    classes: int = option(
        8,
        "Classes in a batch, with --images-per-class images each; or queries and positives.",
        panel=TRAINING,
        minimum=2,
    )
    images_per_class: int = option(4, "Images of each class in a batch.", panel=TRAINING, minimum=2)
    negatives: int = option(
        5,
        "Hardest negatives of a query in the batch, with --task places.",
        panel=TRAINING,
        minimum=1,
    )
    lr: float | None = option(
        None,
        "Learning rate.",
        panel=TRAINING,
        above=0,
        shown="1e-4 for low-rank factors and the projection, 1e-5 for whole matrices",
    )
    folds: int | None = option(
        None,
        "How many times to train with other classes held out, before the model is trained on all of"
        " them; 1 holds out --held-out of them once, and keeps that model.",
        panel=TRAINING,
        minimum=1,
        maximum=20,
        shown=f"3 with fewer than {FEW} classes, else 1",
    )
    held_out: float = option(
        0.2,
        "Fraction of the classes held out with one fold.",
        panel=TRAINING,
        above=0,
        below=1,
    )
    patience: int | None = patience_option(5)
    ema_decay: float = ema_decay_option(0.9, hidden=True)
    weight_decay: float = weight_decay_option(0.01)
    precision: Precision = precision_option(TRAINING)
    grad_checkpointing: bool = grad_checkpointing_option()
    seed: int = option(0, "Seed of batches, crops and mining.", panel=TRAINING, minimum=0)
    keep_anyway: bool = option(
        False, "Write the model even if it is no better on held-out classes.", panel="Output"
    )
    overwrite: bool = overwrite_option()

    @property
    def most_epochs(self) -> int:
        """Epochs to train at most."""
        return (0 if self.unfreeze == "none" else 10) if self.epochs is None else self.epochs
