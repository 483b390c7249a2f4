"""Images of one batch that have the same number of patches left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearvit.backbones.capture import Kind
from clearvit.prune.survivors import Survivors


@dataclass(frozen=True)
class Group:
    """Images with the same number of patches; with a fixed budget there is one group."""

    images: Tensor  # (b,) which of the batch
    x: Tensor  # (b, P + K, C)
    survivors: Survivors
    seen: dict[Kind, Tensor] = field(default_factory=dict)  # captured from the last block


def joined(groups: list[Group], value: Callable[[Group], Tensor]) -> Tensor:
    """Compute a tensor for each group and put the images back in their order."""
    if len(groups) == 1:
        return value(groups[0])
    order = torch.cat([g.images for g in groups]).argsort()
    return torch.cat([value(g) for g in groups])[order]


def some(group: Group, rows: Tensor) -> Group:
    """Take some images of a group."""
    s = group.survivors
    memory = None if s.memory is None else s.memory[rows]
    some = Survivors(s.places[rows], s.heirs[rows], s.sizes[rows], memory)
    seen = {kind: tensor[rows] for kind, tensor in group.seen.items()}
    return Group(group.images[rows], group.x[rows], some, seen)


def regrouped(parts: list[Group]) -> list[Group]:
    """Join groups that have become equally long, whatever they were before."""
    by_length: dict[int, list[Group]] = {}
    for part in parts:
        by_length.setdefault(part.x.shape[1], []).append(part)
    return [_together(same) for same in by_length.values()]


def _together(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    survivors = [g.survivors for g in groups]
    memories = [s.memory for s in survivors if s.memory is not None]
    together = Survivors(
        torch.cat([s.places for s in survivors]),
        torch.cat([s.heirs for s in survivors]),
        torch.cat([s.sizes for s in survivors]),
        torch.cat(memories) if memories else None,
    )
    images = torch.cat([g.images for g in groups])
    return Group(images, torch.cat([g.x for g in groups]), together)
