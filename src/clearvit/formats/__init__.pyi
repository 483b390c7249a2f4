from .export import Exported
from .parity import Check

__all__ = ["Check", "Exported"]
