"""How many patches are kept, and before which blocks the others are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.pruning.config import DEFAULT_SCORER, Fill, Scorer

STAGES = 3
MERGING: tuple[Scorer, ...] = ("fuse", "merge", "plain")
LEAST_PLAIN = 0.25  # four patches become one
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

    def plain_count(self, grid: Size) -> int:
        """Patches left of a grid (H, W) where plain cells of 2 x 2 become one."""
        patches, cells = grid[0] * grid[1], (grid[0] // 2) * (grid[1] // 2)
        removed = patches - int(patches * self.keep[0])
        return patches - 3 * min(cells, -(-removed // 3))

    @property
    def merges_input(self) -> bool:
        """Whether plain regions enter as larger patches."""
        return self.scorer == "plain"

    @property
    def weighs_merged(self) -> bool:
        """Whether a patch that holds n draws the attention of n (as in Bolya et al., 2023).

        A larger patch of a plain region does not: it was harmed on the demo model.
        """
        return self.merge and self.proportional and not self.merges_input

    @property
    def represents(self) -> bool:
        """Whether each removed patch is represented by one that was kept."""
        return self.merge or self.fill in ("similar", "delta", "learned")

    @property
    def compares_keys(self) -> bool:
        """Whether a stage looks for the most similar keys."""
        return self.represents and not self.merges_input


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
    if scorer == "plain":
        return _plain_plan(keep, stages, fill)
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


def _plain_plan(keep: float | Sequence[float], stages: Sequence[int] | None, fill: AnyFill) -> Plan:
    """A plan with one stage, before the first block."""
    fractions = list(keep) if isinstance(keep, Sequence) else [keep]
    if len(fractions) != 1 or list(stages or [0]) != [0]:
        raise ModelError(
            "scorer='plain' merges before the first block only: give one fraction, and no stages."
        )
    if fill != "similar":
        raise ModelError(f"scorer='plain' interpolates by itself; leave fill='{fill}' out.")
    _check_fractions(fractions)
    if fractions[0] < LEAST_PLAIN:
        raise ModelError(f"keep is {fractions[0]}; scorer='plain' can keep 0.25 to 1 of a grid.")
    return Plan((0,), (fractions[0],), "plain", fill, True)


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
