from .config import (
    ClassificationConfig,
    ClusteringConfig,
    DepthConfig,
    EvaluateConfig,
    FaithfulnessConfig,
    GeometricCorrespondenceConfig,
    KnnSegmentationConfig,
    RetrievalTaskConfig,
    SegmentationConfig,
    SemanticCorrespondenceConfig,
    ZeroShotClassificationConfig,
    ZeroShotSegmentationConfig,
)
from .evaluation_table import Measure, Row, Table
from .registry import TASKS

__all__ = [
    "TASKS",
    "ClassificationConfig",
    "ClusteringConfig",
    "DepthConfig",
    "EvaluateConfig",
    "FaithfulnessConfig",
    "GeometricCorrespondenceConfig",
    "KnnSegmentationConfig",
    "Measure",
    "RetrievalTaskConfig",
    "Row",
    "SegmentationConfig",
    "SemanticCorrespondenceConfig",
    "Table",
    "ZeroShotClassificationConfig",
    "ZeroShotSegmentationConfig",
]
