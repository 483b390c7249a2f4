"""Queries, keys, values and attention of any block, also where attention is fused.

Fused kernels never form the attention matrix. Of timm's plain attention we note what its `qkv`
layer gives anyway; of others what enters the module, and project that once more. The attention
matrix is computed only where it was asked for. The model itself runs unchanged, bit for bit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
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
    blocks: Sequence[nn.Module],
    indices: Sequence[int],
    kinds: Sequence[Kind],
    prefix: int,
    bias: Tensor | None = None,
) -> Iterator[Captured]:
    """Record `kinds` of the given blocks while the body runs the model.

    Args:
        blocks: The transformer blocks, each with its attention under `.attn`.
        indices: Which blocks, counted from 0.
        kinds: What to compute; nothing else is.
        prefix: Number of prefix tokens P, the rows of `prefix_attention`.
        bias: What these blocks add to the logits of their attention, (B, 1, 1, T).
    """
    captured: Captured = {kind: {} for kind in kinds}
    handles = []
    try:
        for index in indices if kinds else ():
            attention: Any = _attention_of(blocks[index], index)
            if shares_projection(attention):
                shared = _shared_recorder(captured, index, prefix, attention, bias)
                handles.append(attention.qkv.register_forward_hook(shared))
                continue
            hook = _recorder(captured, index, prefix, bias)
            handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def per_block(captured: Captured, depth: int) -> dict[str, Any]:
    """Arrange what was captured as the fields of `Tokens`."""
    return {kind: PerBlock(values, depth) for kind, values in captured.items()}


def shares_projection(attention: Any) -> bool:
    """Tell whether queries, keys and values can be read from the module's own `qkv` layer."""
    return type(attention) is Attention and attention.qkv is not None


def _shared_recorder(
    captured: Captured, index: int, prefix: int, attention: Any, bias: Tensor | None
) -> Any:
    mine = threading.get_ident()

    def record(_: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        if threading.get_ident() != mine:  # another thread runs this network
            return
        parts = dict(zip(("query", "key", "value"), output.chunk(3, dim=-1), strict=True))

        @functools.cache
        def part(name: str) -> Tensor:
            split: Tensor = parts[name].unflatten(-1, (attention.num_heads, -1))
            heads = split.transpose(1, 2)
            if name != "value":
                heads = getattr(attention, f"{name[0]}_norm")(heads)
            return heads

        def rows() -> Tensor:
            return part("query")[:, :, :prefix]

        _record(captured, index, attention.scale, part, rows, bias)

    return record


def _recorder(captured: Captured, index: int, prefix: int, bias: Tensor | None) -> Any:
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

        # prefix tokens have no rotary position
        rows = functools.partial(project, attention, x[:, :prefix], "query")
        _record(captured, index, attention.scale, part, rows, bias)

    return record


def _record(
    captured: Captured,
    index: int,
    scale: float,
    part: Callable[[str], Tensor],
    prefix_query: Callable[[], Tensor],
    bias: Tensor | None,
) -> None:
    """Fill in what was asked of one block."""
    for kind, values in captured.items():
        if kind == "attention":
            values[index] = attention_weights(part("query"), part("key"), scale, bias)
        elif kind == "prefix_attention":
            values[index] = attention_weights(prefix_query(), part("key"), scale, bias)
        else:
            values[index] = part(kind)


def attention_weights(
    query: Tensor, key: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Attention softmax(scale q k^T + bias), (B, heads, rows of q, rows of k)."""
    logits = (query * scale) @ key.transpose(-2, -1)
    return (logits if bias is None else logits + bias.to(logits.dtype)).softmax(dim=-1)


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
