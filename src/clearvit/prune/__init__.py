"""Drop tokens on the way through a ViT: faster, with dense output on the full grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clearvit.rooms import callable_room

if TYPE_CHECKING:
    from clearvit.prune.config import PruneConfig
    from clearvit.prune.cost import macs
    from clearvit.prune.dynamicvit import import_dynamicvit
    from clearvit.prune.train import train_predictors

__all__ = ["PruneConfig", "import_dynamicvit", "macs", "train_predictors"]

callable_room(__name__, "clearvit.prune.prune:prune")

_HOMES = {
    "PruneConfig": "config",
    "import_dynamicvit": "dynamicvit",
    "macs": "cost",
    "train_predictors": "train",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
