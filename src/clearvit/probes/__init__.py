"""Small heads on frozen tokens and their metrics: linear, kNN, prototypes, clusters, texts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
