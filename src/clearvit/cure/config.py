"""Options of `cv.cure`, shared by the function and the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from clearvit.backbones.preprocessing import Size
from clearvit.cure.denoise import Sampler
from clearvit.cure.features import Features
from clearvit.cure.registers import Init
from clearvit.training.loop import Precision

Method = Literal["distill", "test-time", "denoise"]
METHODS: tuple[Method, ...] = get_args(Method)
Rates = Literal["gentle", "official"]
Vary = Literal["none", "mirror", "views"]

# Learning rates as shares of `lr`, which is that of the blocks. A short run on a few hundred
# pictures does not survive the full rate on the embeddings; see docs/results/tried.md.
RATES: dict[Rates, dict[str, float]] = {
    "gentle": {"registers": 15.0, "positions": 0.2, "patches": 0.06, "rest": 1.0},
    "official": {"registers": 1.0, "positions": 1.0, "patches": 1.0, "rest": 1.0},
}


@dataclass(frozen=True)
class CureConfig:
    """How to cure a model by self-distillation; the defaults suit DINO-like models."""

    size: int | Size | None = None  # pixels; None is the backbone's own size
    views: int = 10  # of each picture, averaged by the teacher
    sampler: Sampler = "lattice"  # or "official"
    fraction: float = 0.15  # largest shift of a view, as a share of the grid
    features: Features = "auto"  # "tokens", or "text" for CLIP: NACLIP teaches MaskCLIP
    layer: int | None = None  # block whose tokens to clean, from 0; None is the last
    registers: int | None = None  # tokens to add; None: 16 where the network can hold new ones
    init: Init = "mean-patch"  # where they start; "official" disturbs small models
    unlock: tuple[str, ...] = ("all",)
    epochs: int = 6
    batch: int = 4  # pictures per step, over all processes
    micro: int | None = None  # pictures per forward pass; None: a step at once
    lr: float = 1e-5  # of the blocks; the other parts follow by `rates`
    ema: float = 0.99  # decay of the running mean of the weights, the result; 0: the last step
    rates: Rates = "gentle"  # or "official": one rate for all, decay on all, no warm-up
    mse: float = 1.0  # weight of the squared distance beside the cosine
    class_weight: float = 1.0  # of the term that keeps the class token where it was; 0 is PH-Reg
    confidence: bool = False  # patches on which the views disagree count less
    vary: Vary = "views"  # what the student sees: shifted and mirrored pictures, with their targets
    validation: float = 0.1  # share of the pictures held out
    patience: int | None = 3  # epochs without progress on them before stopping
    cache: float | None = None  # gigabytes of targets on disk; None: all, 0: none
    targets: str | None = None  # directory of the targets, to share them; inside `out` by default
    precision: Precision = "auto"  # bf16 where the hardware has it
    recompute: bool = False  # forget activations and compute them again: less memory, more time
    seed: int = 0
    overwrite: bool = False  # throw away the training that another run left in `out`
