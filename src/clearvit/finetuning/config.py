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
    epochs_option,
    grad_checkpointing_option,
    patience_option,
    weight_decay_option,
)

FinetuneTask = Literal["retrieval"]
MetricLoss = Literal["margin", "triplet", "contrastive", "multi-similarity", "proxy-anchor"]
Trained = Literal["low-rank", "last-2", "last-4", "all"]


@dataclass(frozen=True)
class FinetuneConfig(Options):
    """How to train an embedding on labelled images."""

    task: FinetuneTask = option(
        "retrieval", "What to train for: 'retrieval' brings images of one class near each other."
    )
    loss: MetricLoss = option(
        "margin",
        "Loss between embeddings: 'margin' with distance-weighted mining is that of the re-ranking"
        " papers; the others are those of pytorch-metric-learning.",
    )
    unfreeze: Trained = option(
        "low-rank",
        "What trains: a 'low-rank' change of every matrix, the 'last-2' or 'last-4' blocks, or"
        " 'all' weights.",
    )
    rank: int = option(8, "Rank of the trained change, with 'low-rank'.", minimum=1)
    size: int | Size | None = size_option()
    layout: Literal["folders", "cub", "cars", "sop"] | None = option(
        None, "Layout of the data set.", shown="detected by its files"
    )
    epochs: int = epochs_option(10)
    classes: int = option(
        8, "Classes in a batch; each gives --images-per-class images.", panel=TRAINING, minimum=2
    )
    images_per_class: int = option(4, "Images of each class in a batch.", panel=TRAINING, minimum=2)
    lr: float | None = option(
        None,
        "Learning rate.",
        panel=TRAINING,
        above=0,
        shown="1e-4 for low-rank factors, 1e-5 for whole matrices",
    )
    held_out: float = option(
        0.2,
        "Fraction of the classes held out to choose the best epoch.",
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
    def batch(self) -> int:
        """Images of a step."""
        return self.classes * self.images_per_class
