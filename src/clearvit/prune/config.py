"""Options of training predictors, shared by the function and the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from clearvit.backbones.preprocessing import Size
from clearvit.prune.losses import Per
from clearvit.prune.survivors import Fill
from clearvit.training.loop import Precision

Objective = Literal["auto", "logits", "tokens"]
Labels = Literal["auto", "folders", "none"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
LABELS: tuple[Labels, ...] = get_args(Labels)


@dataclass(frozen=True)
class PruneConfig:
    """How to train predictors; the defaults are DynamicViT's, the batch that of a small machine."""

    size: int | Size | None = None  # pixels; None is the backbone's own size
    fill: Fill = "similar"  # what a dropped patch shows on the full grid; learned where it settles
    objective: Objective = "auto"  # "logits" of a classifier, or "tokens" (for CLIP's projection)
    labels: Labels = "auto"  # "folders": one for each class of the head, in the order of names
    unlock: bool | None = None  # let the backbone change too; None: only where there are labels
    foresee: int | None = None  # epochs of foresight before them; None: 4 where no label is known
    settle: int | None = None  # epochs of settling after them; None: 4 if unlocked without labels
    average: bool | None = None  # similar patches instead of dropping; None: where it settles
    epochs: int = 30  # at most; the first sixth warms up, with the backbone locked
    batch: int = 16  # pictures per step, over all processes; published with 1024
    micro: int | None = None  # pictures per forward pass; None: a step at once
    lr: float = 1e-3  # of the predictors
    backbone_lr: float = 0.01  # of the backbone, as a share of `lr`
    decay: float = 0.05  # weight decay of matrices
    clip: float | None = None  # largest norm of the gradient; published without
    smoothing: float = 0.1  # of labels
    ratio_weight: float = 2.0  # 5 for DeiT-B
    ratio: Per = "image"  # or "batch": easy pictures may lose more than difficult ones
    mirror: bool = True  # show half of the pictures mirrored
    validation: float = 0.1  # share of the pictures held out
    patience: int | None = 5  # epochs without progress on them before stopping
    precision: Precision = "auto"  # bf16 where the hardware has it
    recompute: bool = False  # in DynamicViT's epochs: compute activations again, to save memory
    seed: int = 0
    overwrite: bool = False  # throw away the training that another run left in `out`
