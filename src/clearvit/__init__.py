"""Make the tokens of a pretrained Vision Transformer clear, useful and cheap.

Every name is imported on first use, so `import clearvit` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearvit import testing
    from clearvit.backbones.backbone import Backbone
    from clearvit.backbones.load import load
    from clearvit.backbones.saved import save_backbone as save
    from clearvit.backbones.tokens import Tokens
    from clearvit.cure.denoise import denoise
    from clearvit.diagnose.diagnosis import DiagnoseConfig, Diagnosis, diagnose
    from clearvit.diagnose.look import look
    from clearvit.errors import ClearvitError, ImageError, ModelError, StoreError
    from clearvit.shards.extract import save_tokens
    from clearvit.shards.plan import TokenConfig
    from clearvit.shards.read import open_tokens

__version__ = "0.1.0"

__all__ = [
    "Backbone",
    "ClearvitError",
    "DiagnoseConfig",
    "Diagnosis",
    "ImageError",
    "ModelError",
    "StoreError",
    "TokenConfig",
    "Tokens",
    "denoise",
    "diagnose",
    "load",
    "look",
    "open_tokens",
    "save",
    "save_tokens",
    "testing",
]

_HOMES = {
    "Backbone": "clearvit.backbones.backbone",
    "ClearvitError": "clearvit.errors",
    "DiagnoseConfig": "clearvit.diagnose.diagnosis",
    "Diagnosis": "clearvit.diagnose.diagnosis",
    "ImageError": "clearvit.errors",
    "ModelError": "clearvit.errors",
    "StoreError": "clearvit.errors",
    "TokenConfig": "clearvit.shards.plan",
    "Tokens": "clearvit.backbones.tokens",
    "denoise": "clearvit.cure.denoise",
    "load": "clearvit.backbones.load",
    "look": "clearvit.diagnose.look",
    "open_tokens": "clearvit.shards.read",
    "save": "clearvit.backbones.saved:save_backbone",
    "save_tokens": "clearvit.shards.extract",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("diagnose", "testing"):  # rooms themselves; the first can be called
        return importlib.import_module(f"clearvit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'clearvit' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
