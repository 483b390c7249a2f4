"""Rooms that are verbs: `clearvit.diagnose` is a package and is called as a function.

Python binds a subpackage to its name in the parent as soon as any of its modules is imported, so a
function of the same name would vanish there. A room that can be called is both.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def callable_room(room: str, function: str) -> None:
    """Let a package be called: `callable_room(__name__, "module:function")`, imported on call."""
    module = sys.modules[room]
    module.__class__ = _Room
    module.__dict__["_verb"] = function


class _Room(ModuleType):
    @property
    def _function(self) -> Callable[..., Any]:
        module, _, name = self._verb.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)
