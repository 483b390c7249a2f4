"""What frozen tokens are worth in a task: one registry of tasks, one table of results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
