"""Search by image and text: an index, patch-level re-ranking, explanations and metrics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
