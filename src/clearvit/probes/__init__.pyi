from .features import Features, extract_features
from .knn import KNN, find_neighbors, fit_knn
from .linear import LinearHead, Ridge, fit_logistic, fit_ridge
from .metrics import depth_metrics, segmentation_metrics
from .prompts import TextClasses, embed_classes

__all__ = [
    "KNN",
    "Features",
    "LinearHead",
    "Ridge",
    "TextClasses",
    "depth_metrics",
    "embed_classes",
    "extract_features",
    "find_neighbors",
    "fit_knn",
    "fit_logistic",
    "fit_ridge",
    "segmentation_metrics",
]
