"""Attention of backbones whose blocks lie on different grids: CvT, and Swin in its windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from clearvit.errors import ModelError
from clearvit.options import Size


@dataclass(frozen=True)
class BlockAttention:
    """Softmax attention of one block.

    Attributes:
        weights: (B, heads, P + Q, P + K), prefix first, rows summing to 1; with windows
            (B, windows, heads, Q, Q), row by row in each.
        queries: Grid of the Q queries; of all windows together.
        keys: Grid of the K keys, which CvT makes coarser than the queries.
        prefix: Number of prefix tokens P.
        window: (height, width) of a window; None: attention reaches everywhere.
        shift: By how much the grid was rolled up and left before it was cut into windows.
    """

    weights: Tensor
    queries: Size
    keys: Size
    prefix: int = 0
    window: Size | None = None
    shift: Size = (0, 0)


Reader = Callable[[], AbstractContextManager[list[BlockAttention]]]
"""Collects the attention of all blocks, in order, while it is entered."""


def cvt_reader(network: Any) -> Reader:
    """Read the attention of transformers' CvT, whose keys are strided."""

    @contextmanager
    def read() -> Iterator[list[BlockAttention]]:
        found: list[BlockAttention] = []
        handles = []
        for stage in network.encoder.stages:
            for layer in stage.layers:
                inner = layer.attention.attention
                stride = int(network.config.stride_kv[stage.stage])
                grids: list[Size] = []
                keep_grid = functools.partial(_keep_grid, grids)
                keep = functools.partial(_keep_cvt, found, grids, stride, int(inner.with_cls_token))
                handles.append(inner.register_forward_pre_hook(keep_grid))
                handles.append(inner.dropout.register_forward_hook(keep))
        with _removed(handles):
            yield found

    return read


def _keep_grid(grids: list[Size], module: nn.Module, inputs: tuple[Any, ...]) -> None:
    grids[:] = [(int(inputs[1]), int(inputs[2]))]


def _keep_cvt(
    found: list[BlockAttention],
    grids: list[Size],
    stride: int,
    prefix: int,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    output: Tensor,
) -> None:
    height, width = grids[0]
    keys = (-(-height // stride), -(-width // stride))
    if keys[0] * keys[1] != output.shape[-1] - prefix:
        raise ModelError("the keys of this CvT do not lie on a strided grid; use uniform weights.")
    found.append(BlockAttention(output, (height, width), keys, prefix))


def swin_reader(network: Any) -> Reader | None:
    """Read the window attention of the last stage of timm's Swin; None for other networks."""
    stages = getattr(network, "layers", None)
    blocks = getattr(stages[-1], "blocks", None) if isinstance(stages, nn.Sequential) else None
    if not blocks or not all(hasattr(block, "window_size") for block in blocks):
        return None
    if not all(isinstance(getattr(b.attn, "softmax", None), nn.Softmax) for b in blocks):
        return None

    @contextmanager
    def read() -> Iterator[list[BlockAttention]]:
        found: list[BlockAttention] = []
        handles, fused = [], []
        for block in blocks:
            grids: list[Size] = []
            keep_grid = functools.partial(_keep_map_grid, grids)
            handles.append(block.register_forward_pre_hook(keep_grid))
            keep = functools.partial(_keep_windows, found, grids, block)
            handles.append(block.attn.softmax.register_forward_hook(keep))
            fused.append((block.attn, getattr(block.attn, "fused_attn", False)))
            block.attn.fused_attn = False  # a fused product shows no attention
        try:
            with _removed(handles):
                yield found
        finally:
            for attention, before in fused:
                attention.fused_attn = before

    return read


def _keep_map_grid(grids: list[Size], module: nn.Module, inputs: tuple[Any, ...]) -> None:
    grids[:] = [(int(inputs[0].shape[1]), int(inputs[0].shape[2]))]  # (B, H, W, C)


def _keep_windows(
    found: list[BlockAttention],
    grids: list[Size],
    block: Any,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    output: Tensor,
) -> None:
    (height, width), window = grids[0], tuple(block.window_size)
    if height % window[0] or width % window[1]:
        raise ModelError("windows reach beyond the grid at this image size; use uniform weights.")
    count = (height // window[0]) * (width // window[1])
    windows = output.unflatten(0, (-1, count))
    shift = tuple(block.shift_size) if count > 1 else (0, 0)
    found.append(BlockAttention(windows, (height, width), (height, width), 0, window, shift))


@contextmanager
def _removed(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
