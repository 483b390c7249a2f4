"""Files to batches of decoded images; bad files are reported, never fatal."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
