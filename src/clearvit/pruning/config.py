"""Options of `cv.prune` and `clearvit prune`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from clearvit.errors import OptionError
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
    clip_norm_option,
    ema_decay_option,
    grad_checkpointing_option,
    held_out_option,
    micro_batch_option,
    patience_option,
    step_batch_option,
    weight_decay_option,
)

Scorer = Literal["fuse", "class", "merge", "random"]
"""Which patches are kept, without training.

- `fuse`: similar patches are merged in pairs, but those the class token attends to are held back;
  where more than two fifths go at a stage, its attention alone decides. The default: best over
  three models, for the class token and for maps.
- `class`: those the class token attends to; the others are dropped, none is averaged.
- `merge`: similar patches are merged in pairs, whatever the class token attends to.
- `random`: the same random positions in every image; a baseline.
"""
Fill = Literal["similar", "delta", "mean"]
"""What a dropped patch shows on the full grid.

- `similar`: the final value of the kept patch whose key was most similar when it was dropped, or of
  the group it was merged into.
- `delta`: the same plus the difference that the two had then.
- `mean`: the mean of the kept patches.
"""
Objective = Literal["auto", "logits", "tokens"]
Labels = Literal["auto", "folders", "none"]
RatioTarget = Literal["image", "batch"]
Augmentation = Literal["flip", "deit", "none"]

SCORERS: tuple[Scorer, ...] = get_args(Scorer)
DEFAULT_SCORER: Scorer = "fuse"  # by benchmarks/prune_choice.py
DROPPING_SCORER: Scorer = "class"  # where merging is not wanted
FILLS: tuple[Fill, ...] = get_args(Fill)
SPEED = re.compile(r"\s*(\d+(?:\.\d+)?)x\s*")

# Rao et al., NeurIPS 2021, and its official code, for DeiT-S on ImageNet with 8 x 128 images
DYNAMICVIT: Mapping[str, Any] = {
    "labels": "folders",
    "unfreeze": True,
    "warmup_epochs": 0,
    "epochs": 30,
    "finetune_epochs": 0,
    "objective": "logits",
    "batch": 1024,
    "micro_batch": 128,  # of each GPU: images that are mixed, normalized and averaged together
    "lr": 1e-3,
    "lr_batch": 1024,
    "min_lr": 1e-6,
    "backbone_lr_scale": 0.01,
    "freeze_epochs": 5,
    "lr_warmup_epochs": 5,
    "schedule": "cosine",
    "weight_decay": 0.05,
    "clip_norm": None,
    "smoothing": 0.1,
    "ratio_weight": 2.0,
    "ratio_target": "image",
    "augmentation": "deit",
    "mixup": 0.8,
    "cutmix": 1.0,
    "ema_decay": 0.9999,
    "batch_statistics": True,
    "held_out": 0.0,
    "patience": None,
    "precision": "no",
}


@dataclass(frozen=True)
class PruneConfig(Options):
    """How to prune a model, and how to train the predictors where there are images."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"dynamicvit": DYNAMICVIT}

    keep: float | tuple[float, ...] | str = option(
        0.7,
        "Fraction of the patches to keep: 0.7 keeps 0.7, 0.49 and 0.343 of them after three stages;"
        " 0.7,0.5 gives one fraction of all patches per stage; 2x finds the largest fraction that"
        " is twice as fast on this machine.",
        panel="Pruning",
        above=0,
        maximum=1,
    )
    stages: tuple[int, ...] | None = option(
        None,
        "Blocks before which patches are removed, counted from 0.",
        panel="Pruning",
        minimum=1,
        shown="evenly spread: 3,6,9 of 12; plain always 0",
    )
    scorer: Scorer | None = option(
        None,
        "Rule that decides which patches are kept where nothing is trained.",
        panel="Pruning",
        shown="fuse; with images trained predictors decide",
    )
    fill: Fill = option(
        "similar",
        "Value of a dropped patch on the full grid; fine-tuning learns it instead.",
        panel="Pruning",
    )
    merge: bool | None = option(
        None,
        "Merge similar patches instead of dropping some.",
        panel="Pruning",
        shown="with the default, merge and fine-tuning",
    )
    size: int | Size | None = size_option("Pruning")
    preset: Literal["dynamicvit"] | None = option(
        None, "Published recipe that sets all training options not given.", panel=TRAINING
    )
    epochs: int = option(
        30, "Epochs of training at most, after the warm-up.", panel=TRAINING, minimum=1
    )
    warmup_epochs: int | None = option(
        None,
        "Epochs that first train the predictors on the attention of later blocks.",
        panel=TRAINING,
        minimum=0,
        shown="4 without labels, else 0",
    )
    finetune_epochs: int | None = option(
        None,
        "Epochs that fine-tune the hard-pruned model after the training.",
        panel=TRAINING,
        minimum=0,
        shown="4 if unfrozen without labels, else 0",
    )
    unfreeze: bool | None = option(
        None, "Train the backbone too.", panel=TRAINING, shown="only with labels"
    )
    labels: Labels = option(
        "auto",
        "Source of class labels: 'folders' needs one folder per class of the model's classifier.",
        panel=TRAINING,
    )
    objective: Objective = option(
        "auto",
        "What is learned from the dense model: its logits, or its tokens; 'auto' takes logits"
        " where it has a classifier.",
        panel=TRAINING,
    )
    batch: int = step_batch_option(16)
    micro_batch: int | None = micro_batch_option()
    lr: float = option(1e-3, "Learning rate of the predictors.", panel=TRAINING, above=0)
    ratio_weight: float = option(
        2.0,
        "Weight of the loss that holds the number of kept patches to its target; 5 for DeiT-B.",
        panel=TRAINING,
        minimum=0,
    )
    precision: Precision = precision_option(TRAINING)
    grad_checkpointing: bool = grad_checkpointing_option()
    seed: int = option(
        0, "Seed of data order, augmentation and new weights.", panel=TRAINING, minimum=0
    )
    held_out: float = held_out_option(hidden=True)
    patience: int | None = patience_option(5, hidden=True)
    lr_batch: int | None = option(
        None,
        "Batch size that `lr` is meant for; it is scaled linearly.",
        panel=TRAINING,
        minimum=1,
        hidden=True,
    )
    min_lr: float = option(
        1e-6, "Last learning rate of a cosine.", panel=TRAINING, minimum=0, hidden=True
    )
    backbone_lr_scale: float = option(
        0.01,
        "Learning rate of the backbone relative to `lr`.",
        panel=TRAINING,
        minimum=0,
        hidden=True,
    )
    freeze_epochs: int | None = option(
        None,
        "Epochs before an unfrozen backbone begins to train; None: the warm-up, or a sixth.",
        panel=TRAINING,
        minimum=0,
        hidden=True,
    )
    lr_warmup_epochs: int | None = option(
        None,
        "Epochs over which the learning rate rises; None: one after a warm-up, or a sixth.",
        panel=TRAINING,
        minimum=0,
        hidden=True,
    )
    schedule: Literal["exponential", "cosine"] = option(
        "exponential", "How the learning rate falls.", panel=TRAINING, hidden=True
    )
    weight_decay: float = weight_decay_option(0.05)
    clip_norm: float | None = clip_norm_option(None)
    smoothing: float = option(
        0.1, "Label smoothing.", panel=TRAINING, minimum=0, below=1, hidden=True
    )
    ratio_target: RatioTarget = option(
        "image", "Whether each image or their mean is held to `keep`.", panel=TRAINING, hidden=True
    )
    augmentation: Augmentation = option(
        "flip", "Augmentation of training images; 'deit' is timm's.", panel=TRAINING, hidden=True
    )
    mixup: float = option(0.0, "Mixup alpha; 0 is none.", panel=TRAINING, minimum=0, hidden=True)
    cutmix: float = option(0.0, "CutMix alpha; 0 is none.", panel=TRAINING, minimum=0, hidden=True)
    ema_decay: float = ema_decay_option(0.0, hidden=True)
    batch_statistics: bool = option(
        False,
        "Let batch norms (of LV-ViT's stem) use and update the statistics of each batch.",
        panel=TRAINING,
        hidden=True,
    )
    overwrite: bool = overwrite_option()

    def __post_init__(self) -> None:
        for name in ("keep", "stages"):  # lists are welcome in Python
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()
        if isinstance(self.keep, str):
            speed_target(self.keep)
        elif isinstance(self.keep, bool) or not isinstance(self.keep, (int, float, tuple)):
            raise _bad_keep(self.keep)

    @property
    def untrained_scorer(self) -> Scorer:
        """The rule that decides where nothing is trained."""
        return self.scorer or (DROPPING_SCORER if self.merge is False else DEFAULT_SCORER)

    def training_options(self) -> list[str]:
        """Name the options of training that differ from their defaults."""
        return [
            field.name
            for field in dataclasses.fields(self)
            if field.metadata["panel"] == TRAINING and getattr(self, field.name) != field.default
        ]


def speed_target(keep: str) -> float:
    """Read "2x" or "1.5x"."""
    found = SPEED.fullmatch(keep)
    if found is None or float(found[1]) <= 1:
        raise _bad_keep(keep)
    return float(found[1])


def _bad_keep(keep: object) -> OptionError:
    return OptionError(
        f"keep is {keep!r}; use a fraction in (0, 1], one for each stage, or a speed above 1 such"
        ' as "1.5x" or "2x".',
        "keep",
    )
