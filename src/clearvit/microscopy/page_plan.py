"""What of each model goes on the page: the output always, the rest as far as it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.capture import capturing
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.pruning.pruned import PrunedBackbone

Part = Literal["token", "key", "query", "value", "attention"]
CAPTURED: tuple[Part, ...] = ("attention", "key", "query", "value")  # in the order of their worth

COARSE = 19  # cells on the longer side of the grid of attention between patches
PHOTO_BYTES = 70_000  # of one image
PER_VALUE = 0.62  # bytes of an int8 after compression, as measured on a DINOv2
BASE64 = 4 / 3
PAGE_BYTES = 90_000  # of the page without data
ATTENTION_BYTES = 1 << 30  # of one image, while attention between all patches is computed


@dataclass(frozen=True)
class ModelPlan:
    """What is stored of one model.

    Attributes:
        size: (height, width) in pixels of what enters it.
        blocks: Blocks whose tokens are stored, from 0, apart from the output.
        parts: Which of attention, key, query and value are stored of a block.
        channels: Principal components of a token.
    """

    size: Size
    channels: int
    blocks: tuple[int, ...] = ()
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PagePlan:
    """What the page holds, and what it would have held with more room."""

    models: tuple[ModelPlan, ...]
    estimate: int  # bytes of the page
    left_out: tuple[str, ...]  # in words, the most useful first


@dataclass(frozen=True)
class Candidate:
    """One thing that may go on the page: a part of one block of every model that has it."""

    words: str
    part: Part
    blocks: tuple[int | None, ...]  # one for each model


def coarse_grid(grid: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Give the factor by which attention between patches is pooled, and the pooled grid."""
    factor = -(-max(grid) // COARSE)
    return factor, (-(-grid[0] // factor), -(-grid[1] // factor))


def base_grid(backbone: Backbone, size: Size) -> tuple[int, int]:
    """Give the grid of the blocks, one cell for each patch, (H, W)."""
    return size[0] // backbone.patch[0], size[1] // backbone.patch[1]


def make_plan(
    backbones: Sequence[Backbone],
    slots: Sequence[Sequence[int]],
    *,
    sizes: Sequence[Size],
    images: int,
    channels: int,
    megabytes: float,
    given: bool,
) -> PagePlan:
    """Choose what fits.

    Args:
        backbones: The models of the page.
        slots: For each model the blocks that may be stored, the most interesting first.
        sizes: (height, width) in pixels that enters each model.
        images: How many there are.
        channels: Principal components of a token.
        megabytes: Size of the page to aim for.
        given: The blocks were asked for, so they are stored whether they fit or not.
    """
    plans = [ModelPlan(size, channels) for size in sizes]
    spent = (
        PAGE_BYTES
        + images * PHOTO_BYTES
        + sum(
            images * _always(backbone, plan.size, channels)
            for backbone, plan in zip(backbones, plans, strict=True)
        )
    )
    left_out = []
    for candidate in _candidates(backbones, slots):
        cost = images * sum(
            _cost(backbone, plan.size, candidate.part, channels)
            for backbone, plan, block in zip(backbones, plans, candidate.blocks, strict=True)
            if block is not None
        )
        asked = given and candidate.part == "token"
        if candidate.part == "attention" and not _fits_memory(backbones, plans, candidate):
            left_out.append(f"{candidate.words} (too many patches to compute it)")
            continue
        if asked or (spent + cost <= megabytes * 1e6 and _has_block(plans, candidate)):
            spent += cost
            plans = [
                _add(p, candidate.part, b) for p, b in zip(plans, candidate.blocks, strict=True)
            ]
        else:
            left_out.append(candidate.words)
    return PagePlan(tuple(plans), round(spent), tuple(left_out))


def _candidates(backbones: Sequence[Backbone], slots: Sequence[Sequence[int]]) -> list[Candidate]:
    """List what may be stored in the order of its worth."""
    last = [_last_block(backbone) for backbone in backbones]
    found = []
    for number in range(max(map(len, slots), default=0)):
        blocks = tuple(own[number] if number < len(own) else None for own in slots)
        found.append(Candidate(f"tokens of {_words(blocks)}", "token", blocks))
    able_models = [block is not None for block in last]
    rows = [tuple(last)]
    for candidate in found:
        pairs = zip(candidate.blocks, able_models, strict=True)
        rows.append(tuple(block if able else None for block, able in pairs))
    for blocks in rows:
        if any(block is not None for block in blocks):
            found += [
                Candidate(f"{_noun(part)} of {_words(blocks)}", part, blocks) for part in CAPTURED
            ]
    return found


def can_capture(backbone: Backbone) -> bool:
    """Tell whether keys, queries, values and attention of every block can be had, on its grid."""
    if not isinstance(backbone, VitBackbone):
        return False
    if isinstance(backbone, PrunedBackbone) and not backbone.plan.represents:
        return False
    try:
        with capturing(backbone.network.blocks, range(backbone.depth), ("key",), 0):
            return True
    except ModelError:
        return False


def _last_block(backbone: Backbone) -> int | None:
    """Name the last block of a model whose blocks have attention to capture."""
    return backbone.depth - 1 if can_capture(backbone) else None


def _noun(part: Part) -> str:
    return {"attention": "attention of patches", "query": "queries"}.get(part, f"{part}s")


def _words(blocks: Sequence[int | None]) -> str:
    named = sorted({block for block in blocks if block is not None})
    return f"block{'s' * (len(named) > 1)} {' and '.join(map(str, named))}"


def _has_block(plans: Sequence[ModelPlan], candidate: Candidate) -> bool:
    """Parts of a block are stored only beside its tokens."""
    if candidate.part == "token":
        return True
    pairs = [(p, b) for p, b in zip(plans, candidate.blocks, strict=True) if b is not None]
    inner = any(block in plan.blocks for plan, block in pairs)
    return inner or all(not plan.blocks or block > max(plan.blocks) for plan, block in pairs)


def _fits_memory(
    backbones: Sequence[Backbone], plans: Sequence[ModelPlan], candidate: Candidate
) -> bool:
    """Tell whether attention between all patches of these blocks can be held at the same time."""
    for backbone, plan, block in zip(backbones, plans, candidate.blocks, strict=True):
        if block is None or not isinstance(backbone, VitBackbone):
            continue
        grid, held = (
            base_grid(backbone, plan.size),
            sum("attention" in p for p in plan.parts.values()),
        )
        cells = grid[0] * grid[1] + len(backbone.prefix_names)
        heads = getattr(getattr(backbone.network.blocks[block], "attn", None), "num_heads", 16)
        if 4 * heads * cells**2 * (held + 1) > ATTENTION_BYTES:
            return False
    return True


def _add(plan: ModelPlan, part: Part, block: int | None) -> ModelPlan:
    if block is None:
        return plan
    if part == "token":
        return replace(plan, blocks=tuple(sorted({*plan.blocks, block})))
    return replace(plan, parts={**plan.parts, block: (*plan.parts.get(block, ()), part)})


def _always(backbone: Backbone, size: Size, channels: int) -> float:
    """Estimate the bytes of what is stored of one image in any case."""
    cells = backbone.grid_of(size)
    base = base_grid(backbone, size)
    tokens = cells[0] * cells[1] * min(channels, backbone.width)
    others = base[0] * base[1] * (backbone.depth + 4 * len(backbone.prefix_names))
    return (tokens + others) * PER_VALUE * BASE64


def _cost(backbone: Backbone, size: Size, part: Part, channels: int) -> float:
    """Estimate the bytes of one part of one block of one image."""
    grid = base_grid(backbone, size)
    if part == "attention":
        _, coarse = coarse_grid(grid)
        return (coarse[0] * coarse[1]) ** 2 * PER_VALUE * BASE64
    return grid[0] * grid[1] * min(channels, backbone.width) * PER_VALUE * BASE64
