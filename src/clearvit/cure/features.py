"""Which tokens are cleaned: the final ones, those of another block, or CLIP's in the text space."""

from __future__ import annotations

import copy
from typing import Literal, NamedTuple

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError

Features = Literal["auto", "tokens", "text"]


class Pair(NamedTuple):
    """Two readings of one model whose tokens lie in the same space."""

    teacher: VitBackbone
    student: VitBackbone


def pair_of(backbone: VitBackbone, features: Features = "auto", layer: int | None = None) -> Pair:
    """Read a model as teacher and as student.

    "tokens" are those after the final norm, for both. "text" is what PH-Reg does for CLIP: the
    teacher is NACLIP, the student MaskCLIP, both projected to the space of the texts. "auto" takes
    "text" for models with a text tower. A `layer`, from 0, ends both with that block.
    """
    if features not in ("auto", "tokens", "text"):
        raise ModelError(f"features is '{features}'; use auto, tokens or text.")
    if features == "text" or (features == "auto" and backbone.text is not None and layer is None):
        if layer is not None:
            raise ModelError("a layer can be chosen for features='tokens' only.")
        from clearvit.backbones.dense_clip import dense_clip

        return Pair(dense_clip(backbone, "naclip"), dense_clip(backbone, "maskclip"))
    cut = _ending_with(backbone, layer)
    return Pair(cut, cut)


def _ending_with(backbone: VitBackbone, layer: int | None) -> VitBackbone:
    if layer is None:
        return backbone
    other = copy.copy(backbone)
    other.depth = backbone.block_indices([layer])[0] + 1
    return other


def whole(student: VitBackbone) -> VitBackbone:
    """Undo the choice of a layer: run all blocks again."""
    other = copy.copy(student)
    other.depth = len(student.network.blocks)
    return other
