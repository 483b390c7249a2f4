from .annotations.strokes import write_strokes
from .labelled_examples import Examples, read_examples
from .mask_results import Mask, Masks
from .segmenter import Segmenter, load_segmenter

__all__ = [
    "Examples",
    "Mask",
    "Masks",
    "Segmenter",
    "load_segmenter",
    "read_examples",
    "write_strokes",
]
