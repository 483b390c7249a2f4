from .compare import Comparison
from .rows import ComparisonRow, ReferenceGap

__all__ = ["Comparison", "ComparisonRow", "ReferenceGap"]
