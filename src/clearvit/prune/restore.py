"""Captured tensors of a shortened sequence on the full grid."""

from __future__ import annotations

import torch
from torch import Tensor

from clearvit.backbones.capture import Kind
from clearvit.prune.survivors import Survivors


def restored(captured: Tensor, kind: Kind, survivors: Survivors, prefix: int) -> Tensor:
    """Bring a captured tensor to all P + N tokens.

    A dropped patch has the query, key, value and row of attention of the patch that stands for
    it. Nobody attends to it: its column is 0, and rows still sum to 1.

    Args:
        captured: (B, heads, P + K, ...) or, of "prefix_attention", (B, heads, P, P + K).
        kind: What it is.
        survivors: Who the K patches are.
        prefix: Number of prefix tokens P.
    """
    if survivors.complete:
        return captured
    full = captured
    if kind != "prefix_attention":
        full = _gathered(captured, _after_prefix(survivors.heirs, prefix))
    if kind not in ("attention", "prefix_attention"):
        return full
    columns = _after_prefix(survivors.places, prefix)[:, None, None]
    width = prefix + survivors.heirs.shape[1]
    empty = full.new_zeros(*full.shape[:-1], width)
    return empty.scatter(-1, columns.expand(full.shape), full)


def _gathered(tensor: Tensor, indices: Tensor) -> Tensor:
    """Take rows (B, T) of a tensor (B, heads, *, D)."""
    wanted = indices[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, wanted)


def _after_prefix(indices: Tensor, prefix: int) -> Tensor:
    """Number the tokens of a sequence whose patches are `indices`, (B, T) -> (B, P + T)."""
    first = torch.arange(prefix, device=indices.device).expand(len(indices), -1)
    return torch.cat([first, indices + prefix], dim=1)
