"""Queries, keys, values and attention of any block, also where attention is fused.

Fused kernels never form the attention matrix, so we note what enters each chosen attention module
and recompute only what was asked. The model itself runs unchanged, bit for bit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.backbones.guarded_timm import (
    Attention,
    AttentionRope,
    EvaAttention,
    apply_rot_embed_cat,
)
from clearvit.backbones.tokens import PerBlock
from clearvit.errors import ModelError, closest

Kind = Literal["query", "key", "value", "attention", "prefix_attention"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Captured = dict[Kind, dict[int, Tensor]]


def check_kinds(kinds: Sequence[str] | str) -> tuple[Kind, ...]:
    """Return the kinds if they all exist, else say which there are."""
    asked = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in asked:
        if kind not in KINDS:
            raise ModelError(
                f"cannot capture '{kind}'; choose from {', '.join(KINDS)}.{closest(kind, KINDS)}"
            )
    return tuple(kind for kind in KINDS if kind in asked)


def prefix_to_patches(attention: Tensor, prefix: int, row: int = 0) -> Tensor:
    """Give the attention of one prefix token to the patches, mean over heads, (..., N).

    Args:
        attention: Captured "attention" or "prefix_attention", (..., heads, rows, P + N).
        prefix: Number of prefix tokens P.
        row: Which prefix token; the class token is the first.
    """
    return attention[..., row, prefix:].mean(-2)


@contextmanager
def capturing(
    blocks: Sequence[nn.Module], indices: Sequence[int], kinds: Sequence[Kind], prefix: int
) -> Iterator[Captured]:
    """Record `kinds` of the given blocks while the body runs the model.

    Args:
        blocks: The transformer blocks, each with its attention under `.attn`.
        indices: Which blocks, counted from 0.
        kinds: What to compute; nothing else is.
        prefix: Number of prefix tokens P, the rows of `prefix_attention`.
    """
    captured: Captured = {kind: {} for kind in kinds}
    handles = []
    try:
        for index in indices if kinds else ():
            attention = _attention_of(blocks[index], index)
            hook = _recorder(captured, index, prefix)
            handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def per_block(captured: Captured, depth: int) -> dict[str, Any]:
    """Arrange what was captured as the fields of `Tokens`."""
    return {kind: PerBlock(values, depth) for kind, values in captured.items()}


def _recorder(captured: Captured, index: int, prefix: int) -> Any:
    mine = threading.get_ident()

    def record(
        attention: Any, arguments: tuple[Any, ...], options: dict[str, Any] | None = None
    ) -> None:
        if options is None or threading.get_ident() != mine:  # another thread runs this network
            return
        rope = options.get("rope", arguments[1] if len(arguments) > 1 else None)
        x = arguments[0]

        @functools.cache
        def part(name: str) -> Tensor:
            return project(attention, x, name, rope)

        for kind, values in captured.items():
            if kind == "attention":
                values[index] = attention_weights(part("query"), part("key"), attention.scale)
            elif kind == "prefix_attention":  # prefix tokens have no rotary position
                query = project(attention, x[:, :prefix], "query")
                values[index] = attention_weights(query, part("key"), attention.scale)
            else:
                values[index] = part(kind)

    return record


def attention_weights(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Attention softmax(scale q k^T), (B, heads, rows of q, rows of k)."""
    return ((query * scale) @ key.transpose(-2, -1)).softmax(dim=-1)


def project(attention: Any, x: Tensor, part: str, rope: Tensor | None = None) -> Tensor:
    """Compute one of query, key, value of a timm attention module.

    Args:
        attention: timm's Attention, AttentionRope or EvaAttention.
        x: What enters the module, (B, T, C).
        part: "query", "key" or "value".
        rope: Rotary embedding of the patch tokens, as timm passes it to the module.

    Returns:
        (B, heads, T, C / heads), as it enters the attention product.
    """
    letter = part[0]
    if attention.qkv is not None:
        index = "qkv".index(letter)
        bias = getattr(attention, f"{letter}_bias", None)
        if bias is None and attention.qkv.bias is not None:
            bias = attention.qkv.bias.chunk(3)[index]
        flat = F.linear(x, attention.qkv.weight.chunk(3)[index], bias)
    else:
        flat = getattr(attention, f"{letter}_proj")(x)
    # grouped-query attention shares keys and values among heads
    own = attention.num_heads if letter == "q" else getattr(attention, "num_kv_heads", None)
    heads: Tensor = flat.unflatten(-1, (own or attention.num_heads, -1)).transpose(1, 2)
    if letter != "v":
        heads = getattr(attention, f"{letter}_norm")(heads)
        if rope is not None:
            heads = _rotate(attention, heads, rope)
    groups = attention.num_heads // heads.shape[1]
    return heads if groups == 1 else heads.repeat_interleave(groups, dim=1)


def _rotate(attention: Any, heads: Tensor, rope: Tensor) -> Tensor:
    prefix = attention.num_prefix_tokens
    half = getattr(attention, "rotate_half", False)
    rotated = heads.clone()
    rotated[:, :, prefix:] = apply_rot_embed_cat(heads[:, :, prefix:], rope, half=half).type_as(
        heads
    )
    return rotated


def _attention_of(block: nn.Module, index: int) -> nn.Module:
    attention = getattr(block, "attn", None)
    if not isinstance(attention, (Attention, AttentionRope, EvaAttention)):
        raise ModelError(
            f"block {index} is a {type(block).__name__} without plain attention; nothing can be"
            " captured from it. tokens(..., layers=...) works for every block."
        )
    found: nn.Module = attention
    return found
