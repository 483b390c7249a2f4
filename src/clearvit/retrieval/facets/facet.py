"""Facets of a model: which vector stands for a patch.

The final token is one of many. Queries, keys, values and tokens of inner blocks know more of
position, texture and parts and less of the class (Amir et al., "Deep ViT Features as Dense Visual
Descriptors", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError

KINDS = ("token", "query", "key", "value")
PROJECTED = "projected"  # the final tokens through the projection that finetune trained
INNER = 2 / 3  # depth of the inner block of the short list: block 7 of 12


@dataclass(frozen=True)
class Facet:
    """One vector per patch: a projection of a block, or its output."""

    kind: str = "token"  # one of KINDS
    block: int | None = None  # from 0; None: the final tokens

    def __str__(self) -> str:
        return self.kind if self.block is None else f"{self.kind}:{self.block}"


FINAL, PROJECTION = Facet(), Facet(PROJECTED)


def parse_facet(text: str, backbone: Backbone) -> Facet:
    """Read "token", "value:7" or "key:-1" and check that the model has it."""
    kind, _, number = text.partition(":")
    if kind not in KINDS or not number.removeprefix("-").isdigit():
        if text == "token":
            return FINAL
        if text == PROJECTED:
            return _check_projected(backbone)
        raise ModelError(
            f"facet is '{text}'; write auto, token (the final tokens), or a kind and a block, such"
            f" as value:7. Kinds are {', '.join(KINDS)}. '{PROJECTED}' is for models with a"
            " projection that finetune trained."
        )
    if not backbone.depth:
        raise ModelError(f"'{backbone.name}' gives its final tokens only; use facet='token'.")
    block = int(number) + (backbone.depth if number.startswith("-") else 0)
    if not 0 <= block < backbone.depth:
        raise ModelError(
            f"facet is '{text}' and '{backbone.name}' has blocks 0 to {backbone.depth - 1}."
        )
    return Facet(kind, block)


def facet_width(backbone: Backbone, facet: Facet) -> int:
    """Count the channels of a facet."""
    return backbone.embedding if facet == PROJECTION else backbone.width


def _check_projected(backbone: Backbone) -> Facet:
    if not (isinstance(backbone, VitBackbone) and backbone.embedding):
        raise ModelError(f"'{backbone.name}' has no projection for its patches; use facet='token'.")
    return PROJECTION


def short_list(backbone: Backbone) -> list[Facet]:
    """List the facets that an automatic choice tries: few, since each costs time."""
    if not backbone.depth:
        return [FINAL]
    inner, last = max(round(INNER * backbone.depth) - 1, 0), backbone.depth - 1
    values = [Facet("value", block) for block in dict.fromkeys((last, inner))]
    return [facet for facet in values if _has(backbone, facet)] or [FINAL]


def _has(backbone: Backbone, facet: Facet) -> bool:
    """Try a facet on a blank image: some networks have no keys or values to capture."""
    blank = torch.zeros(1, 3, *backbone.patch, device=backbone.device, dtype=backbone.dtype)
    try:
        with torch.no_grad():
            backbone.forward(blank, **capture_options([facet]))
    except (ModelError, RuntimeError, ValueError):
        return False
    return True


def capture_options(facets: Sequence[Facet]) -> dict[str, Any]:
    """Give the options of `Backbone.forward` that some facets need."""
    blocks = sorted({facet.block for facet in facets if facet.block is not None})
    kinds = tuple(sorted({facet.kind for facet in facets if facet.block is not None} - {"token"}))
    return {"layers": blocks, "capture": kinds} if blocks else {}


def facet_vectors(
    tokens: Tokens, facet: Facet, backbone: Backbone | None = None
) -> tuple[Tensor, tuple[int, int]]:
    """Take a facet out of tokens that were made with its `capture_options`.

    Args:
        tokens: Of B images.
        facet: Which vectors.
        backbone: The model that made the tokens; only its projection is asked for.

    Returns:
        Vectors of all patches, (B, N, C) float32, and their grid.
    """
    if facet == PROJECTION:
        assert isinstance(backbone, VitBackbone)  # as `parse_facet` checked
        return backbone.project_patches(tokens.patches).float(), tokens.grid
    if facet.block is None:
        return tokens.patches.float(), tokens.grid
    height, width = tokens.grid
    grid = (height // tokens.scale, width // tokens.scale)  # inner blocks know no finer one
    if facet.kind == "token":
        return tokens.layers[facet.block].patches.float(), grid
    heads = cast(Tensor, getattr(tokens, facet.kind)[facet.block])  # (B, heads, P + N, C / heads)
    whole = heads.transpose(1, 2).flatten(2).float()
    return whole[:, tokens.prefix.shape[1] :], grid
