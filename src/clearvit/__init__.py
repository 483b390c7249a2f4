"""Make the tokens of a pretrained Vision Transformer clear, fine, useful and cheap.

Every name is imported on first use, so `import clearvit` costs nothing; `__init__.pyi` lists them.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
