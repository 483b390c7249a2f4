from .folders import read_depths, read_labels
from .masks import read_masks
from .retrieval_dataset import RetrievalDataset
from .retrieval_layouts import read_retrieval
from .splits import VOID, DepthSplit, LabelSplit, MaskSplit
from .voc import VocBoxes, read_voc_boxes

__all__ = [
    "VOID",
    "DepthSplit",
    "LabelSplit",
    "MaskSplit",
    "RetrievalDataset",
    "VocBoxes",
    "read_depths",
    "read_labels",
    "read_masks",
    "read_retrieval",
    "read_voc_boxes",
]
