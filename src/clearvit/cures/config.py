"""Options of `cv.cure` and `clearvit cure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from clearvit.options import (
    LARGEST_SIDE,
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
    epochs_option,
    grad_checkpointing_option,
    held_out_option,
    micro_batch_option,
    patience_option,
    step_batch_option,
    weight_decay_option,
)
from clearvit.views.config import FRACTION, SAMPLER_HELP, Sampler

Method = Literal["distill", "test-time", "positional", "instant", "denoise", "fine"]
Preset = Literal["ph-reg", "ph-reg-clip"]
Features = Literal["auto", "tokens", "text"]
RegisterInit = Literal["mean-patch", "normal"]
Augment = Literal["none", "shift-flip"]

TARGETS, STUDENT, OUTPUT = "Targets", "Student", "Output"

# "Vision Transformers with Self-Distilled Registers", arXiv 2505.21501, as its code trains DINOv2.
PH_REG: dict[str, Any] = {
    "size": 518,
    "features": "tokens",
    "views": 10,
    "fraction": 0.15,
    "sampler": "official",
    "directions": 0,
    "fresh_targets": True,
    "registers": 16,
    "register_init": "normal",
    "unfreeze": ("registers", "positions", "patches", "last"),
    "augment": "none",
    "epochs": 100,
    "batch": 32,  # 8 on each of 4 GPUs
    "lr": 1e-4,
    "lr_end": 5e-6,
    "lr_scale": (1.0, 1.0, 1.0),
    "schedule": "ph-reg",
    "warmup_steps": 0,
    "weight_decay": 1e-2,
    "decay_all": True,
    "clip_norm": None,
    "ema_decay": 0.0,
    "mse_weight": 1.0,
    "class_weight": 0.0,
    "held_out": 0.0,
    "patience": None,
    "precision": "bf16",
}
# The same for CLIP: the code's trainable blocks and position table, the paper's rates and batch.
PH_REG_CLIP: dict[str, Any] = {
    **PH_REG,
    "size": 448,
    "features": "text",
    "resize_positions": True,
    "unfreeze": ("registers", "positions", "patches", "last-2"),
    "batch": 64,  # 16 on each of 4 GPUs
    "lr": 3e-4,
    "lr_end": 1e-5,
}


@dataclass(frozen=True)
class CureConfig(Options):
    """How to cure a model; the defaults suit DINO-like models and a few hundred images."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ph-reg": PH_REG,
        "ph-reg-clip": PH_REG_CLIP,
    }

    method: Method = option(
        "distill",
        "How to cure: 'distill' trains. Without training, 'test-time' moves register neurons,"
        " 'positional' removes directions of position, 'instant' may smooth too, and 'denoise'"
        " averages views; 'fine' leaves the model as it is and adds the head of --scale 2.",
    )
    preset: Preset | None = option(
        None, "Train exactly as PH-Reg was published, for DINOv2 or for CLIP.", shown="none"
    )
    scale: int | None = option(
        None,
        "How many times finer the tokens become: 2 also fits a small head that gives them in one"
        " forward pass, after the cure.",
        minimum=1,
        maximum=16,
        shown="2 with method 'fine', else 1",
    )
    size: int | Size | None = size_option()
    sizes: tuple[int, ...] | None = option(
        None,
        "Image sizes in pixels to mix in the training, such as 224,448, so that one model serves"
        " them and those between; each image has one of them, a size named twice has more images.",
        minimum=1,
        maximum=LARGEST_SIDE,
        shown="none, only --size",
    )
    features: Features = option(
        "auto",
        "Which tokens to clean: the final 'tokens', or CLIP's patches in the 'text' space; 'auto'"
        " takes the latter for models with a text tower.",
    )
    layer: int | None = option(
        None, "Clean the tokens of this block, counted from 0.", minimum=-512, shown="the last"
    )

    views: int = option(
        10, "Views of each image that the teacher averages.", panel=TARGETS, minimum=1
    )
    fraction: float = option(
        FRACTION,
        "Largest shift of a view, as a fraction of the grid.",
        panel=TARGETS,
        minimum=0,
        below=1,
        hidden=True,
    )
    sampler: Sampler = option("lattice", SAMPLER_HELP, panel=TARGETS)
    directions: int | Literal["auto"] = option(
        0,
        "Directions of position to remove from the targets; 'auto' chooses how many, 0 included, on"
        " some of the images, without labels.",
        panel=TARGETS,
        minimum=0,
    )
    fresh_targets: bool = option(
        False,
        "Take a new random crop and new views of an image every epoch; nothing is cached.",
        panel=TARGETS,
        hidden=True,
    )
    target_cache_gb: float | None = option(
        None,
        "Gigabytes of targets to keep on disk; 0 computes them anew in every epoch.",
        panel=TARGETS,
        minimum=0,
        shown="all of them",
    )
    targets_dir: str | None = option(
        None,
        "Directory of the targets, to share them between runs.",
        panel=TARGETS,
        shown="inside the result",
    )

    registers: int | None = option(
        None,
        "Register tokens to add.",
        panel=STUDENT,
        minimum=0,
        maximum=4096,
        shown="16 where the network can hold them",
    )
    register_init: RegisterInit = option(
        "mean-patch",
        "Where registers start: at the mean patch embedding, or at random as in PH-Reg.",
        panel=STUDENT,
        hidden=True,
    )
    resize_positions: bool = option(
        False,
        "Replace the position table by one of this size before training.",
        panel=STUDENT,
        hidden=True,
    )
    unfreeze: tuple[str, ...] = option(
        ("low-rank", "registers", "positions"),
        "Parts to train: low-rank (factors beside every matrix of the blocks, norms, biases),"
        " registers, positions, patches, class, norm, last, last-N (blocks), all.",
        panel=STUDENT,
    )
    rank: int = option(
        16, "Rank of the trained change of a matrix, with 'low-rank'.", panel=STUDENT, minimum=1
    )
    augment: Augment = option(
        "shift-flip",
        "Augmentation of the student's images and targets: none, or shift and flip.",
        panel=STUDENT,
        hidden=True,
    )

    epochs: int = epochs_option(6)
    batch: int = step_batch_option(4)
    micro_batch: int | None = micro_batch_option()
    lr: float | None = option(
        None,
        "Learning rate of the blocks.",
        panel=TRAINING,
        above=0,
        shown="2e-4 for low-rank factors, 1e-5 for whole matrices",
    )
    lr_end: float | None = option(
        None, "Learning rate at the end.", panel=TRAINING, above=0, shown="lr / 20", hidden=True
    )
    lr_scale: tuple[float, float, float] | None = option(
        None,
        "Learning rates of registers, position embeddings and patch embedding, relative to lr.",
        panel=TRAINING,
        minimum=0,
        hidden=True,
    )
    schedule: Literal["cosine", "ph-reg"] = option(
        "cosine", "How the learning rate falls with the epochs.", panel=TRAINING, hidden=True
    )
    warmup_steps: int | None = option(
        None,
        "Steps over which the learning rate rises.",
        panel=TRAINING,
        minimum=0,
        shown="5 % of all, at most 50",
        hidden=True,
    )
    weight_decay: float = weight_decay_option(1e-2)
    decay_all: bool = option(
        False, "Decay registers, positions, norms and biases too.", panel=TRAINING, hidden=True
    )
    clip_norm: float | None = clip_norm_option(1.0)
    ema_decay: float = ema_decay_option(0.99)
    mse_weight: float = option(
        1.0,
        "Weight of the squared error beside the cosine distance.",
        panel=TRAINING,
        minimum=0,
        hidden=True,
    )
    class_weight: float = option(
        1.0,
        "Weight of the loss that keeps the class token; 0 disables it, as in PH-Reg.",
        panel=TRAINING,
        minimum=0,
    )
    head_agreement: float = option(
        0.9,
        "Least fraction of the held-out images for which a classifier's own head must still predict"
        " the same class; an epoch below it is not kept. 0 does not ask the head.",
        panel=TRAINING,
        minimum=0,
        maximum=1,
    )
    held_out: float = held_out_option()
    patience: int | None = patience_option(3)
    precision: Precision = precision_option(TRAINING)
    grad_checkpointing: bool = grad_checkpointing_option()
    seed: int = option(0, "Seed of views, data order and registers.", panel=TRAINING, minimum=0)

    keep_anyway: bool = option(
        False, "Write the model even if it is no better on held-out images.", panel=OUTPUT
    )
    overwrite: bool = overwrite_option()
