from .microscope_page import MicroscopeResult

__all__ = ["MicroscopeResult"]
