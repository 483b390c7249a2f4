"""What can be chosen about an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from clearvit.dense.classification import Method, Pooled
from clearvit.dense.windows import Sliding
from clearvit.errors import ModelError, closest
from clearvit.evaluate.retrieval_config import RetrievalConfig

if TYPE_CHECKING:
    from clearvit.backbones.dense_clip import Head

Recipe = Literal["fast", "sgd", "paper"]
Inference = Literal["whole", "slide"]
Unit = Literal["millimetres", "metres"]

LEAST = {
    "draws": 1,
    "limit": 1,
    "neighbours": 1,
    "patches": 1,
    "iterations": 1,
    "batch": 1,
    "resamples": 2,
    "crop": 1,
    "stride": 1,
}
CHOICES = {"recipe": Recipe, "inference": Inference, "features": Pooled, "unit": Unit}


@dataclass(frozen=True)
class EvaluateConfig:
    """Options of `evaluate` and of `clearvit evaluate`."""

    size: int | tuple[int, int] | None = None  # pixels; None is the backbone's own
    layout: str | None = None  # of the folder; None recognises it
    train: str = "train"  # split to learn from
    test: str | None = None  # split to measure on; None is "val", or else "test"
    labelled: tuple[int | None, ...] = (None,)  # labelled images (per class in classification)
    draws: int = 1  # of these images; the spread is over draws
    limit: int | None = None  # test images at most, spread evenly
    subset: tuple[str, ...] = ()  # classes whose mean IoU is told too
    recipe: Recipe = "fast"  # how a probe is fitted
    iterations: int | None = None  # of "fast" segmentation (1 000), "sgd" (2 000), "paper" (20 000)
    penalty: float = 1e-3  # on the weights of closed-form probes, for features of unit variance
    patches: int = 250_000  # that a bank of neighbours holds at most
    inference: Inference | None = None  # one pass or windows; None: windows if zero-shot
    crop: int | None = None  # side of a window in pixels; None is the shorter side of `size`
    stride: int | None = None  # of windows in pixels; None is 341 / 518 of the crop
    heads: tuple[Head, ...] = ()  # zero-shot segmentation; (): the model's own, or else "naclip"
    names: str | Path | None = None  # zero-shot: a file with the words of each class on its line
    prompts: tuple[str, ...] = ()  # zero-shot: with {} for the word; (): the 80 of CLIP
    texts: str | None = None  # zero-shot: the model whose text tower is used; None: its own
    threshold: float | None = None  # zero-shot: surest class below it: class 0; None: published
    neighbours: int | None = None  # that vote; None is 30 patches, 20 images
    temperature: float | None = None  # of their votes; None is 0.02 for patches, 0.07 for images
    methods: tuple[Method, ...] = ("knn", "linear")  # of classification
    features: Pooled | None = None  # of classification; None: the class token if there is one
    unit: Unit = "millimetres"  # of depth files
    depth: tuple[float, float] = (1e-3, 10.0)  # metres; depths outside are ignored
    eigen: bool = False  # measure depth inside the Eigen crop of 480 x 640 photos
    alphas: tuple[float, ...] = (0.05, 0.1)  # of PCK, as shares of the longer side
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)  # and of explanation
    resamples: int = 500  # of the test images, for intervals
    batch: int = 8  # images per forward pass
    cache: str | Path | None = None  # folder that keeps tokens for the next run
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ModelError(f"{name} is {value}; give at least {least}.")
        for name, kind in CHOICES.items():
            _check(name, getattr(self, name), get_args(kind))
        for method in self.methods:
            _check("methods", method, get_args(Method))
        if not self.labelled or any(n is not None and n < 1 for n in self.labelled):
            raise ModelError("labelled holds numbers of at least 1, or None for all images.")
        if not 0 < self.depth[0] < self.depth[1]:
            raise ModelError(f"depth is {self.depth}; give (nearest, farthest) in metres, above 0.")
        if self.penalty <= 0 or (self.temperature is not None and self.temperature <= 0):
            raise ModelError("penalty and temperature must be above 0.")

    @property
    def sliding(self) -> Sliding:
        """The windows of inference "slide"."""
        return Sliding(self.size, self.crop, self.stride, self.batch)

    @property
    def steps(self) -> int:
        """Iterations of the recipes "sgd" and "paper"."""
        return self.iterations or (20_000 if self.recipe == "paper" else 2_000)


def _check(name: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise ModelError(f"{name} is '{value}'; use {', '.join(known)}.{closest(value, known)}")
