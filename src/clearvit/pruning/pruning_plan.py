"""How many patches are kept, and before which blocks the others are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clearvit.errors import ModelError
from clearvit.pruning.config import DEFAULT_SCORER, Fill, Scorer

STAGES = 3
MERGING: tuple[Scorer, ...] = ("fuse", "merge")
AnyFill = Fill | Literal["learned"]


@dataclass(frozen=True)
class Plan:
    """What a pruned backbone does; `make_plan` checks it against the depth of the network."""

    stages: tuple[int, ...]  # blocks before which patches are removed, from 0, ascending
    keep: tuple[float, ...]  # fraction of all patches kept after each stage
    scorer: Scorer | None  # None: trained predictors
    fill: AnyFill  # "learned": by a trained LearnedFill
    merge: bool  # whether similar patches are merged instead of dropping some
    proportional: bool = True  # see `weighs_merged`; False for models saved before

    def counts(self, patches: int) -> list[int]:
        """Patches kept after each stage, of `patches` in the grid."""
        left, counts = patches, []
        for fraction in self.keep:
            left = max(1, min(left, int(patches * fraction)))  # int() as DynamicViT does
            counts.append(left)
        return counts

    @property
    def weighs_merged(self) -> bool:
        """Whether a patch that holds many draws more attention than one (`reduction.DRAWN`)."""
        return self.merge and self.proportional

    @property
    def represents(self) -> bool:
        """Whether each removed patch is represented by one that was kept."""
        return self.merge or self.fill in ("similar", "delta", "learned")


def make_plan(
    depth: int,
    *,
    keep: float | Sequence[float] = 0.7,
    stages: Sequence[int] | None = None,
    scorer: Scorer | None = DEFAULT_SCORER,
    fill: AnyFill = "similar",
    merge: bool | None = None,
) -> Plan:
    """Check a plan and fill in its defaults.

    Args:
        depth: Blocks of the network.
        keep: A fraction r, which means r, r^2, r^3, ..., or one fraction of all patches for each
            stage.
        stages: Blocks before which patches are removed; spread evenly by default, 3, 6, 9 of 12.
        scorer: Which patches are kept; None for trained predictors.
        fill: What a dropped patch shows on the full grid.
        merge: Whether similar patches are merged instead of dropping some; None leaves it to the
            scorer.
    """
    if merge is False and scorer in MERGING:
        raise ModelError(f"scorer='{scorer}' merges patches; drop them with scorer='class'.")
    many = isinstance(keep, Sequence)
    blocks = _stages(depth, stages, len(keep) if isinstance(keep, Sequence) else STAGES)
    fractions = (
        list(keep) if isinstance(keep, Sequence) else [keep ** (s + 1) for s in range(len(blocks))]
    )
    if many and len(fractions) != len(blocks):
        raise ModelError(
            f"keep has {len(fractions)} fractions for {len(blocks)} stages {blocks}; give one for"
            " each, or one number."
        )
    _check_fractions(fractions)
    merges = scorer in MERGING if merge is None else merge
    return Plan(tuple(blocks), tuple(fractions), scorer, fill, merges)


def _check_fractions(fractions: list[float]) -> None:
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise ModelError(f"keep is {fractions}; use fractions in (0, 1].")
    if fractions != sorted(fractions, reverse=True):
        raise ModelError(
            f"keep is {fractions}; dropped patches do not return, so the fractions must not grow"
            " from stage to stage."
        )


def _stages(depth: int, stages: Sequence[int] | None, count: int) -> list[int]:
    if depth < 2:
        raise ModelError("a network of one block cannot be pruned between its blocks.")
    if stages is None:
        return sorted({max(1, depth * (s + 1) // (count + 1)) for s in range(count)})
    wanted = list(stages)
    fit = all(isinstance(s, int) and 1 <= s < depth for s in wanted)
    if not wanted or not fit or wanted != sorted(set(wanted)):
        raise ModelError(
            f"stages are {wanted}; give block numbers from 1 to {depth - 1} in ascending order."
            " Patches are removed before these blocks."
        )
    return wanted
