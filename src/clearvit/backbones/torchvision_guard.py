"""Import torchvision where its compiled part cannot load.

A CUDA build of torchvision beside a CPU build of torch installs without complaint and fails on
import (`operator torchvision::nms does not exist`): registering the fake version of an operator
needs its declaration, which lives in the compiled part. We declare it; nothing here computes it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # operators vanish when their library is collected


def import_torchvision() -> ModuleType:
    """Import torchvision, declaring its missing operators only if the plain import needs them.

    A healthy installation is left untouched. Under the guard `torchvision.ops.nms` and
    `torchvision.io` stay unusable; clearvit uses neither.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half-imported modules would hide the second attempt
    if not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    return importlib.import_module("torchvision")
