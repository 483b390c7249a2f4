"""Options that every training has: sentences and ranges stand here, defaults with the verb."""

from __future__ import annotations

from typing import Any

from clearvit.options import option

TRAINING = "Training"  # panel


def epochs_option(default: int) -> Any:
    """Declare how long the training is."""
    return option(default, "Epochs to train at most.", panel=TRAINING, minimum=1)


def step_batch_option(default: int) -> Any:
    """Declare how many images make a step."""
    return option(default, "Images per step, over all processes.", panel=TRAINING, minimum=1)


def micro_batch_option() -> Any:
    """Declare how many images pass at once."""
    help = "Images per forward pass; the gradients of a step are accumulated."
    return option(None, help, panel=TRAINING, minimum=1, shown="the batch")


def weight_decay_option(default: float) -> Any:
    """Declare the weight decay."""
    return option(default, "Weight decay of matrices.", panel=TRAINING, minimum=0, hidden=True)


def clip_norm_option(default: float | None) -> Any:
    """Declare how gradients are clipped."""
    return option(default, "Largest norm of the gradient.", panel=TRAINING, above=0, hidden=True)


def ema_decay_option(default: float, *, hidden: bool = False) -> Any:
    """Declare the average of the weights."""
    help = "Decay of the EMA of the weights, which is evaluated and kept; 0 disables it."
    return option(default, help, panel=TRAINING, minimum=0, below=1, hidden=hidden)


def held_out_option(*, hidden: bool = False) -> Any:
    """Declare how many images judge the epochs."""
    help = "Fraction of the images held out to choose the best epoch; 0 keeps the last epoch."
    return option(0.1, help, panel=TRAINING, minimum=0, below=1, hidden=hidden)


def patience_option(default: int, *, hidden: bool = False) -> Any:
    """Declare when a training stops early."""
    help = "Epochs without a better held-out score before training stops; 'none' trains them all."
    return option(default, help, panel=TRAINING, minimum=1, hidden=hidden)


def grad_checkpointing_option() -> Any:
    """Declare gradient checkpointing."""
    help = "Recompute activations in the backward pass, to save memory."
    return option(False, help, panel=TRAINING)
