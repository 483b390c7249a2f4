"""Backbone -> faster Backbone: patches that matter little are dropped or merged on the way."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
