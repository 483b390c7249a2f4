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
    from clearvit.bench.bench import bench
    from clearvit.bench.config import BenchConfig
    from clearvit.compare.compare import compare
    from clearvit.compare.config import CompareConfig
    from clearvit.cure.config import CureConfig
    from clearvit.cure.cure import cure
    from clearvit.cure.denoise import denoise
    from clearvit.dense.discover import discover
    from clearvit.diagnose.diagnosis import DiagnoseConfig, Diagnosis, diagnose
    from clearvit.diagnose.look import look
    from clearvit.errors import (
        ClearvitError,
        ImageError,
        ModelError,
        StoreError,
        TrainingError,
    )
    from clearvit.evaluate.config import EvaluateConfig
    from clearvit.evaluate.evaluate import evaluate
    from clearvit.export.export import export
    from clearvit.prune.config import PruneConfig
    from clearvit.prune.prune import prune
    from clearvit.retrieval.filling import IndexConfig
    from clearvit.retrieval.index import Index
    from clearvit.shards.extract import save_tokens
    from clearvit.shards.plan import TokenConfig
    from clearvit.shards.read import open_tokens

__version__ = "0.1.0"

__all__ = [
    "Backbone",
    "BenchConfig",
    "ClearvitError",
    "CompareConfig",
    "CureConfig",
    "DiagnoseConfig",
    "Diagnosis",
    "EvaluateConfig",
    "ImageError",
    "Index",
    "IndexConfig",
    "ModelError",
    "PruneConfig",
    "StoreError",
    "TokenConfig",
    "Tokens",
    "TrainingError",
    "bench",
    "compare",
    "cure",
    "denoise",
    "diagnose",
    "discover",
    "evaluate",
    "export",
    "load",
    "look",
    "open_tokens",
    "prune",
    "save",
    "save_tokens",
    "testing",
]

_HOMES = {
    "Backbone": "clearvit.backbones.backbone",
    "BenchConfig": "clearvit.bench.config",
    "ClearvitError": "clearvit.errors",
    "CompareConfig": "clearvit.compare.config",
    "CureConfig": "clearvit.cure.config",
    "DiagnoseConfig": "clearvit.diagnose.diagnosis",
    "Diagnosis": "clearvit.diagnose.diagnosis",
    "EvaluateConfig": "clearvit.evaluate.config",
    "ImageError": "clearvit.errors",
    "Index": "clearvit.retrieval.index",
    "IndexConfig": "clearvit.retrieval.filling",
    "ModelError": "clearvit.errors",
    "PruneConfig": "clearvit.prune.config",
    "StoreError": "clearvit.errors",
    "TokenConfig": "clearvit.shards.plan",
    "Tokens": "clearvit.backbones.tokens",
    "TrainingError": "clearvit.errors",
    "denoise": "clearvit.cure.denoise",
    "discover": "clearvit.dense.discover",
    "load": "clearvit.backbones.load",
    "look": "clearvit.diagnose.look",
    "open_tokens": "clearvit.shards.read",
    "save": "clearvit.backbones.saved:save_backbone",
    "save_tokens": "clearvit.shards.extract",
}


_ROOMS = ("bench", "compare", "cure", "diagnose", "evaluate", "export", "prune", "testing")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _ROOMS:  # verbs among them can be called
        return importlib.import_module(f"clearvit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'clearvit' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
