from .read import TokenStore

__all__ = ["TokenStore"]
