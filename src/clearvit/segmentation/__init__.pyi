from .annotations.strokes import write_strokes
from .labelled_examples import Examples, read_examples

__all__ = [
    "Examples",
    "read_examples",
    "write_strokes",
]
