"""The patches still in the sequence, and how the others are restored on the full grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.backbones.capture import Kind
from clearvit.pruning.pruning_plan import AnyFill
from clearvit.pruning.selection import Choice, gather_rows, merge_tokens

# ToMe (Bolya et al., 2023) has 1, which is good for supervised models and harms DINOv2 where many
# are merged; with `fuse`, 0.5 is near the better of 1 and 0 on both (benchmarks/prune_choice.py)
DRAWN = 0.5


@dataclass(frozen=True)
class KeptTokens:
    """Which K of the N patches of each of B images are in the sequence."""

    positions: Tensor  # (B, K) indices on the grid, ascending
    assignment: Tensor  # (B, N) which of the K represents each patch of the grid
    sizes: Tensor  # (B, K) how many patches each one holds; 1 unless merged
    memory: Tensor | None = None  # (B, N, C) what "delta" and "learned" remember

    @staticmethod
    def all_of(batch: int, count: int, device: torch.device) -> KeptTokens:
        """Begin with all patches of the grid."""
        positions = torch.arange(count, device=device).expand(batch, -1)
        return KeptTokens(positions, positions, torch.ones(batch, count, device=device))

    @property
    def is_full(self) -> bool:
        """Whether nothing was removed yet."""
        return self.positions.shape[1] == self.assignment.shape[1]

    @property
    def mask(self) -> Tensor:
        """Which patches are in the sequence, (B, N) bool."""
        return torch.zeros_like(self.assignment).scatter(1, self.positions, 1).bool()

    @property
    def unmerged(self) -> Tensor:
        """Which patches are in the sequence and hold no other, (B, N) bool."""
        return self.mask & (self.sizes.gather(1, self.assignment) == 1)

    def attention_bias(self, prefix: int) -> Tensor:
        """What to add to the logits of attention for P prefix tokens and the K, (B, 1, 1, P + K).

        A patch that holds n then draws the attention of n ** DRAWN equal ones.
        """
        first = self.sizes.new_zeros(self.sizes.shape[0], prefix)
        return DRAWN * torch.cat([first, self.sizes.log()], dim=1)[:, None, None]


def reduce_tokens(
    x: Tensor, kept: KeptTokens, choice: Choice, *, fill: AnyFill, merge: bool
) -> tuple[Tensor, KeptTokens]:
    """Carry out a choice on patches (B, K, C).

    Args:
        x: The patches in the sequence.
        kept: Which patches they are.
        choice: Which of them are kept, and which represents each of the others.
        fill: Decides what to remember of removed patches.
        merge: Whether removed patches are averaged into those that represent them, or dropped.
    """
    if merge:
        shorter, sizes = merge_tokens(x, kept.sizes, choice)
    else:
        shorter, sizes = gather_rows(x, choice.kept), kept.sizes.gather(1, choice.kept)
    positions = kept.positions.gather(1, choice.kept)
    assignment = choice.assignment.gather(1, kept.assignment)
    memory = None
    if fill == "delta":
        memory = restore_tokens(x, kept, fill) - gather_rows(shorter, assignment)
    if fill == "learned":
        memory = last_values(x, kept)
    return shorter, KeptTokens(positions, assignment, sizes, memory)


def last_values(x: Tensor, kept: KeptTokens) -> Tensor:
    """Each patch as it was when it was last unmerged, (B, K, C) -> (B, N, C)."""
    if kept.memory is None:
        return x
    return torch.where(kept.unmerged[..., None], gather_rows(x, kept.assignment), kept.memory)


def restore_tokens(x: Tensor, kept: KeptTokens, fill: AnyFill) -> Tensor:
    """Bring patches (B, K, C) to the full grid, (B, N, C); "learned" is added by its module."""
    if kept.is_full:
        return x
    copied = gather_rows(x, kept.assignment)
    if fill == "mean":
        return torch.where(kept.mask[..., None], copied, x.mean(dim=1, keepdim=True))
    if fill == "delta":
        assert kept.memory is not None
        return copied + kept.memory
    return copied


def restore_captured(captured: Tensor, kind: Kind, kept: KeptTokens, prefix: int) -> Tensor:
    """Bring a captured tensor to all P + N tokens.

    A dropped patch has the query, key, value and row of attention of the patch that represents it.
    No token attends to it: its column is 0, and rows still sum to 1.

    Args:
        captured: (B, heads, P + K, ...) or, of "prefix_attention", (B, heads, P, P + K).
        kind: What it is.
        kept: Which patches the K are.
        prefix: Number of prefix tokens P.
    """
    if kept.is_full:
        return captured
    full = captured
    if kind != "prefix_attention":
        rows = _after_prefix(kept.assignment, prefix)[:, None, :, None]
        full = captured.gather(2, rows.expand(-1, captured.shape[1], -1, captured.shape[3]))
    if kind not in ("attention", "prefix_attention"):
        return full
    columns = _after_prefix(kept.positions, prefix)[:, None, None]
    width = prefix + kept.assignment.shape[1]
    empty = full.new_zeros(*full.shape[:-1], width)
    return empty.scatter(-1, columns.expand(full.shape), full)


def _after_prefix(indices: Tensor, prefix: int) -> Tensor:
    """Number the tokens of a sequence whose patches are `indices`, (B, T) -> (B, P + T)."""
    first = torch.arange(prefix, device=indices.device).expand(len(indices), -1)
    return torch.cat([first, indices + prefix], dim=1)
