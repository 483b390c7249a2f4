"""Options of `cv.evaluate` and `clearvit evaluate TASK`, one config per task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clearvit.errors import OptionError
from clearvit.options import ClipHead, DepthUnit, Options, Size, batch_option, option, size_option
from clearvit.probes.config import ClassificationMethod, Pooling
from clearvit.retrieval.config import Descriptor, Method, PatchWeights

Probe = Literal["fast", "sgd"]
Inference = Literal["whole", "slide"]
ComparedWeights = PatchWeights | Literal["cross", "cross-inverse", "cross-minus", "cross-softmax"]

DATA, METHOD, WINDOWS, RERANKING = "Data", "Method", "Windows", "Patch-level re-ranking"


def _layout(known: str) -> Any:
    return option(None, f"Layout of the folder: {known}.", panel=DATA, shown="detected")


def _split() -> Any:
    return option(
        None, "Name of the split to test on.", panel=DATA, shown="the layout's val or test split"
    )


def _subset() -> Any:
    return option((), "Also report the mean IoU of these classes, such as cat,dog.", panel=DATA)


def _num_labelled(unit: str) -> Any:
    return option(
        (None,),
        f"Numbers of labelled {unit} to learn from, such as 5,20,all.",
        panel=DATA,
        minimum=1,
    )


def _seeds(what: str) -> Any:
    return option(1, f"Number of random {what} to average over.", panel=METHOD, minimum=1)


def _penalty() -> Any:
    return option(
        1e-3, "L2 penalty of the linear fit, for standardized features.", panel=METHOD, above=0
    )


def _alphas() -> Any:
    return option(
        (0.05, 0.1),
        "PCK thresholds as fractions of the longer side; a match within counts as correct.",
        panel=METHOD,
        above=0,
    )


def _inference(default: Inference) -> Any:
    help = "Squash the image into one forward pass, or slide windows."
    return option(default, help, panel=WINDOWS)


def _crop(shown: str) -> Any:
    help = "Side of a sliding window in pixels."
    return option(None, help, panel=WINDOWS, minimum=1, shown=shown)


def _stride(shown: str) -> Any:
    help = "Stride of the sliding windows in pixels."
    return option(None, help, panel=WINDOWS, minimum=1, shown=shown)


MASK_LAYOUTS = (
    "voc, voc20, ade20k, cityscapes, coco-stuff, coco-object, pascal-context, pascal-context-59,"
    " folders"
)


@dataclass(frozen=True)
class EvaluateConfig(Options):
    """Options of every task."""

    size: int | Size | None = size_option(DATA)
    limit: int | None = option(
        None, "Largest number of test images, taken evenly.", panel=DATA, minimum=1, shown="all"
    )
    batch: int = batch_option(8, "Run")
    seed: int = option(0, "First seed of samples, probes and resampling.", panel="Run", minimum=0)


@dataclass(frozen=True)
class CachedConfig(EvaluateConfig):
    """Options of tasks that read every image once, whatever else is chosen."""

    cache: Path | None = option(
        None, "Folder that keeps features for the next run.", panel="Run", shown="not kept"
    )


@dataclass(frozen=True)
class MaskConfig(CachedConfig):
    """Options of tasks on images with masks, without training."""

    layout: str | None = _layout(MASK_LAYOUTS)
    split: str | None = _split()


@dataclass(frozen=True)
class LabelledMaskConfig(MaskConfig):
    """Options of segmentation from labelled images."""

    subset: tuple[str, ...] = _subset()
    num_labelled: tuple[int | None, ...] = _num_labelled("images")
    seeds: int = _seeds("samples of the labelled images")
    inference: Inference = _inference("whole")
    crop: int | None = _crop("the shorter side")
    stride: int | None = _stride("341/518 of the crop")


@dataclass(frozen=True)
class SegmentationConfig(LabelledMaskConfig):
    """Options of the task "segmentation"."""

    probe: Probe = option(
        "fast",
        "Training of the linear probe: fast (on class fractions of cells) or sgd (on pixels).",
        panel=METHOD,
    )
    iterations: int | None = option(
        None,
        "Training iterations of the probe.",
        panel=METHOD,
        minimum=1,
        shown="1000 with fast, 2000 with sgd",
    )


@dataclass(frozen=True)
class KnnSegmentationConfig(LabelledMaskConfig):
    """Options of the task "knn-segmentation"."""

    k: int = option(30, "Number of neighbors that vote for a patch.", panel=METHOD, minimum=1)
    memory: int = option(
        250_000,
        "Largest number of labelled patches that vote, the same number of each image; Hummingbird"
        " is published with 10000000.",
        panel=METHOD,
        minimum=1,
    )


@dataclass(frozen=True)
class DepthConfig(CachedConfig):
    """Options of the task "depth"."""

    split: str | None = _split()
    num_labelled: tuple[int | None, ...] = _num_labelled("images")
    seeds: int = _seeds("samples of the labelled images")
    probe: Probe = option(
        "fast",
        "Depth head: fast (ridge regression to log depth) or sgd (256 bins, trained).",
        panel=METHOD,
    )
    iterations: int = option(2000, "Training iterations of the probe sgd.", panel=METHOD, minimum=1)
    penalty: float = _penalty()
    unit: DepthUnit = option("millimeters", "Unit of the numbers in depth files.", panel=DATA)
    min_depth: float = option(1e-3, "Nearest valid depth in meters.", panel=DATA, above=0)
    max_depth: float = option(10.0, "Farthest valid depth in meters.", panel=DATA, above=0)
    eigen_crop: bool = option(
        False, "Measure inside the Eigen crop of 480 x 640 images.", panel=DATA
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_depth >= self.max_depth:
            raise OptionError(
                f"min_depth is {self.min_depth:g}; give less than max_depth, {self.max_depth:g}.",
                "min_depth",
            )


@dataclass(frozen=True)
class ClassificationConfig(CachedConfig):
    """Options of the task "classification"."""

    split: str | None = _split()
    num_labelled: tuple[int | None, ...] = _num_labelled("images per class")
    seeds: int = _seeds("samples of the labelled images")
    methods: tuple[ClassificationMethod, ...] = option(
        ("knn", "linear"), "Classifiers to fit, each a row of the table.", panel=METHOD
    )
    pooling: Pooling | None = option(
        None,
        "Feature of an image: class token, mean of the patches, or both.",
        panel=METHOD,
        shown="class, or mean without a class token",
    )
    k: int = option(20, "Number of neighbors that vote for an image.", panel=METHOD, minimum=1)
    temperature: float = option(
        0.07,
        "Temperature of the votes: a neighbor weighs softmax(cosine / temperature).",
        panel=METHOD,
        above=0,
    )
    penalty: float = _penalty()


@dataclass(frozen=True)
class GeometricCorrespondenceConfig(EvaluateConfig):
    """Options of the task "geometric-correspondence"."""

    seeds: int = _seeds("warps of each image")
    alphas: tuple[float, ...] = _alphas()


@dataclass(frozen=True)
class SemanticCorrespondenceConfig(MaskConfig):
    """Options of the task "semantic-correspondence"."""

    seeds: int = _seeds("pairings of the images")


@dataclass(frozen=True)
class ClusteringConfig(MaskConfig):
    """Options of the task "clustering"."""

    seeds: int = _seeds("initializations of k-means")


@dataclass(frozen=True)
class ZeroShotConfig(EvaluateConfig):
    """Options of tasks whose classes are given by names."""

    split: str | None = _split()
    names: Path | None = option(
        None,
        "File with the names of each class on its line, separated by commas.",
        panel=METHOD,
        shown="the data set's own names",
    )
    prompts: tuple[str, ...] = option(
        (),
        "Prompts with {} for the name, separated by commas.",
        panel=METHOD,
        shown="the 80 prompts of CLIP",
    )
    text_model: str | None = option(
        None,
        "Model whose text tower embeds the names, for a cured copy that is saved without.",
        panel=METHOD,
        shown="the model itself",
    )


@dataclass(frozen=True)
class ZeroShotClassificationConfig(ZeroShotConfig):
    """Options of the task "zero-shot-classification"."""


@dataclass(frozen=True)
class ZeroShotSegmentationConfig(ZeroShotConfig):
    """Options of the task "zero-shot-segmentation"."""

    layout: str | None = _layout(MASK_LAYOUTS)
    subset: tuple[str, ...] = _subset()
    heads: tuple[ClipHead, ...] = option(
        (),
        "Dense heads of CLIP, each a row of the table.",
        panel=METHOD,
        shown="the model's own, else naclip",
    )
    threshold: float | None = option(
        None,
        "Probability below which a pixel becomes class 0, the background.",
        panel=METHOD,
        minimum=0,
        maximum=1,
        shown="as published for the layout",
    )
    inference: Inference = _inference("slide")
    crop: int | None = _crop("as published for the layout")
    stride: int | None = _stride("as published for the layout")


@dataclass(frozen=True)
class ComparedConfig(CachedConfig):
    """Options of tasks that compare images patch by patch, in several ways."""

    layout: str | None = _layout("cub, cars, sop, msls, vpr, folders")
    split: str | None = _split()
    methods: tuple[Method, ...] = option(
        ("transport",), "How patches are matched, each a row of the table.", panel=RERANKING
    )
    patch_weights: tuple[ComparedWeights, ...] = option(
        ("auto",),
        "How much each patch counts, each a row of the table; cross is the weighting of DIML, the"
        " others that begin with cross are those of Zhang et al.",
        panel=RERANKING,
    )
    masses: tuple[float | Literal["auto"], ...] = option(
        (1.0,),
        "Fractions of the patch weights that transport matches, such as 1,0.7,auto.",
        panel=RERANKING,
        above=0,
        maximum=1,
    )
    grid: int = option(7, "Patches per side that are compared.", panel=RERANKING, minimum=1)
    descriptor: Descriptor = option(
        "auto",
        "Global descriptor: class token, mean of the patches, or the joint image-text space.",
        panel=METHOD,
    )


@dataclass(frozen=True)
class RetrievalTaskConfig(ComparedConfig):
    """Options of the task "retrieval"."""

    rerank: int = option(
        100,
        "How many of the nearest images to compare patch by patch; 0 ranks by descriptors only.",
        panel=RERANKING,
        minimum=0,
    )
    weights: tuple[float | Literal["gate"], ...] = option(
        (1.0, "gate"),
        "Weights of the patch similarity, each a row; gate chooses one without labels.",
        panel=RERANKING,
        above=0,
    )
    recall: tuple[int, ...] = option(
        (1, 5, 10), "Ranks k at which Recall@k is reported.", panel=METHOD, minimum=1
    )


@dataclass(frozen=True)
class FaithfulnessConfig(ComparedConfig):
    """Options of the task "faithfulness"."""

    layout: str | None = _layout(f"{MASK_LAYOUTS}; or cub, cars, sop, msls, vpr")
    alphas: tuple[float, ...] = _alphas()
    hidden_fractions: tuple[float, ...] = option(
        (0.1, 0.2, 0.3, 0.5),
        "Fractions of the patches that the deletion test hides.",
        panel=METHOD,
        above=0,
        below=1,
    )
