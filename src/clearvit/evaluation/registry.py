"""The tasks of `cv.evaluate` by name: their options, their help and where they are implemented.

A task is one entry here and one function `prepare(data, config) -> Prepared`, which reads the data
before any model is loaded. Modules of tasks are imported when they are used.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clearvit.evaluation import config as configs
from clearvit.evaluation.config import EvaluateConfig

if TYPE_CHECKING:
    from clearvit.evaluation.task_data import Prepared


CELLS = (
    "A cell is the mean ± standard deviation over seeds [95 % CI over resampled test images],"
    " followed by the difference to the first model on the same images."
)


@dataclass(frozen=True)
class Task:
    """One task."""

    config: type[EvaluateConfig]
    help: str  # one sentence
    function: str  # "module:function" in this package
    example: str  # options of an example on the command line

    def prepare(self, data: Path, config: EvaluateConfig) -> Prepared:
        """Read the data and bind it to the task."""
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(f"clearvit.evaluation.{module}"), name)
        prepared: Prepared = function(data, config)
        return prepared


TASKS: dict[str, Task] = {
    "segmentation": Task(
        configs.SegmentationConfig,
        "Fit a linear probe to patch tokens and measure mIoU.",
        "segmentation_task:prepare_linear",
        "demo dir:cured/ --data VOC2012/ --num-labelled 20,60,all --seeds 3",
    ),
    "knn-segmentation": Task(
        configs.KnnSegmentationConfig,
        "Segment by the nearest labelled patches, without training, and measure mIoU.",
        "segmentation_task:prepare_knn",
        "demo dir:cured/ --data VOC2012/ --num-labelled 60",
    ),
    "depth": Task(
        configs.DepthConfig,
        "Fit a linear depth probe to patch tokens and measure RMSE and delta.",
        "depth_task:prepare",
        "demo --data nyu/ --probe sgd --eigen-crop",
    ),
    "classification": Task(
        configs.ClassificationConfig,
        "Classify images by kNN, logistic regression or prototypes and measure top-1.",
        "classification_task:prepare",
        "demo --data imagenet/ --methods knn,prototypes",
    ),
    "geometric-correspondence": Task(
        configs.GeometricCorrespondenceConfig,
        "Match patches between an image and a known warp of it and measure PCK.",
        "correspondence_task:prepare_geometric",
        "demo --data photos/ --limit 50",
    ),
    "semantic-correspondence": Task(
        configs.SemanticCorrespondenceConfig,
        "Match patches between images of one class and count matches that land in the class.",
        "correspondence_task:prepare_semantic",
        "demo dir:cured/ --data VOC2012/ --seeds 3",
    ),
    "clustering": Task(
        configs.ClusteringConfig,
        "Cluster the patches of each image by k-means and measure mIoU.",
        "clustering_task:prepare",
        "demo dir:cured/ --data VOC2012/",
    ),
    "zero-shot-segmentation": Task(
        configs.ZeroShotSegmentationConfig,
        "Segment by class names with a CLIP-like model and measure mIoU.",
        "zero_shot_task:prepare_segmentation",
        "openclip:ViT-B-16/openai --data VOC2012/ --heads maskclip,naclip",
    ),
    "zero-shot-classification": Task(
        configs.ZeroShotClassificationConfig,
        "Classify images by class names with a CLIP-like model and measure top-1 and top-5.",
        "zero_shot_task:prepare_classification",
        "openclip:ViT-B-16/openai --data imagenet/",
    ),
    "retrieval": Task(
        configs.RetrievalTaskConfig,
        "Rank images by descriptors and by patch-level re-ranking and measure P@1 and MAP@R.",
        "retrieval_task:prepare",
        "demo --data CUB_200_2011/ --masses 1,0.7,auto",
    ),
    "faithfulness": Task(
        configs.FaithfulnessConfig,
        "Measure whether explanations of retrieval point at the right patches.",
        "faithfulness_task:prepare",
        "demo --data photos/ --limit 60",
    ),
}
