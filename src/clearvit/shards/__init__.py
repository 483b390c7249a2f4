"""Tokens of a whole folder on disk: written once, resumed after a crash, read lazily."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
