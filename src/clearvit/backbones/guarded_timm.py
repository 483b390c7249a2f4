"""timm, also where the compiled part of torchvision cannot load; all modules take timm from here.

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

    A healthy installation is left untouched. After the repair `torchvision.ops.nms` and
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


import_torchvision()


def was_repaired() -> bool:
    """Tell whether torchvision could be imported only with the declarations made here."""
    return bool(_declared)


import timm  # noqa: E402 - it imports torchvision
from timm.data import (  # noqa: E402
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    Mixup,
    create_transform,
    resolve_model_data_config,
)
from timm.layers import Attention, AttentionRope, PatchEmbed, apply_rot_embed_cat  # noqa: E402
from timm.models.eva import Eva, EvaAttention, EvaBlock  # noqa: E402
from timm.models.vision_transformer import Block, VisionTransformer  # noqa: E402

__all__ = [
    "IMAGENET_DEFAULT_MEAN",
    "IMAGENET_DEFAULT_STD",
    "Attention",
    "AttentionRope",
    "Block",
    "Eva",
    "EvaAttention",
    "EvaBlock",
    "Mixup",
    "PatchEmbed",
    "VisionTransformer",
    "apply_rot_embed_cat",
    "create_transform",
    "import_torchvision",
    "resolve_model_data_config",
    "timm",
    "was_repaired",
]
