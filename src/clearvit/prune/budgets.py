"""How many patches stay, and before which blocks the others leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from clearvit.errors import ModelError, closest
from clearvit.prune.scores import SCORERS, Scorer
from clearvit.prune.survivors import FILLS, Fill

Budget = Literal["fixed", "adaptive"]
"""Whether every image keeps the same number of patches.

- `fixed`: `keep` is the share of patches.
- `adaptive`: `keep` is the share of the summed score of an image that its patches must hold;
  images that show little keep few.
"""

BUDGETS: tuple[Budget, ...] = get_args(Budget)
STAGES = 3
AVERAGING: tuple[Scorer, ...] = ("fuse", "merge")
BUCKETS = 16  # adaptive counts are rounded up to this many steps, so that images share a batch


@dataclass(frozen=True)
class Plan:
    """What a pruned backbone does; everything is checked when it is made by `planned`."""

    stages: tuple[int, ...]  # blocks before which patches leave, from 0, ascending
    keep: tuple[float, ...]  # share of the original patches (or score) left after each stage
    scorer: Scorer | None  # None: learned predictors
    fill: Fill
    budget: Budget
    average: bool  # whether similar patches are averaged instead of dropping some

    def counts(self, patches: int) -> list[int]:
        """Patches left after each stage of a fixed budget, of `patches` in the grid."""
        left, counts = patches, []
        for share in self.keep:
            left = max(1, min(left, int(patches * share)))  # int() as DynamicViT does
            counts.append(left)
        return counts

    @property
    def compares_keys(self) -> bool:
        """Whether a stage looks for the most similar keys."""
        return self.average or self.fill in ("similar", "delta", "learned")


def planned(
    depth: int,
    *,
    keep: float | Sequence[float],
    stages: Sequence[int] | None,
    scorer: Scorer | None,
    fill: Fill,
    budget: Budget,
    average: bool | None = None,
) -> Plan:
    """Check every word of a plan and fill in its defaults.

    Args:
        depth: Blocks of the network.
        keep: A share rho, which means rho, rho^2, rho^3, ..., or one share for each stage, each
            of the original number of patches.
        stages: Blocks before which patches leave; spread evenly by default, before blocks 3, 6, 9
            of 12.
        scorer: Which patches stay; None for learned predictors.
        fill: What dropped patches show on the full grid.
        budget: "fixed" or "adaptive".
        average: Whether similar patches are averaged instead of dropping some; None leaves it to
            the scorer.
    """
    _known("scorer", scorer, (None, *SCORERS))
    _known("fill", fill, FILLS)
    _known("budget", budget, BUDGETS)
    if budget == "adaptive" and scorer == "merge":
        raise ModelError(
            "merging has no score to add up, so its budget is fixed. Use budget='fixed', or another"
            f" scorer: {', '.join(s for s in SCORERS if s != 'merge')}."
        )
    if average is False and scorer in AVERAGING:
        raise ModelError(f"scorer='{scorer}' averages; drop patches with scorer='class'.")
    shares = None if _is_number(keep) else list(keep)  # type: ignore[arg-type]
    places = _stages(depth, stages, STAGES if shares is None else len(shares))
    if shares is None:
        rho = _share(keep)
        # of the score: each stage looks at what is left, so its share is of that
        shares = [rho ** (s + 1) if budget == "fixed" else rho for s in range(len(places))]
    elif len(shares) != len(places):
        raise ModelError(
            f"keep has {len(shares)} shares for {len(places)} stages {places}; give one for each,"
            " or one number."
        )
    checked = tuple(_share(share) for share in shares)
    if budget == "fixed" and list(checked) != sorted(checked, reverse=True):
        raise ModelError(
            f"keep is {list(checked)}; shares are of the original patches, and dropped ones do not"
            " return, so they must not grow from stage to stage."
        )
    averages = scorer in AVERAGING if average is None else average
    return Plan(tuple(places), checked, scorer, fill, budget, averages)


def needed(scores: Tensor, share: float, step: int) -> Tensor:
    """Count the best patches of each image that hold `share` of its summed score.

    Args:
        scores: Not negative, (B, K).
        share: In (0, 1].
        step: Counts are rounded up to a multiple of this, at most K.

    Returns:
        (B,), each at least 1.
    """
    ranked = scores.double().sort(dim=1, descending=True).values
    reached = ranked.cumsum(dim=1)
    # what stands before a patch decides whether it is still needed, so the first one always is
    before = torch.cat([torch.zeros_like(reached[:, :1]), reached[:, :-1]], dim=1)
    count = (before < share * reached[:, -1:]).sum(dim=1).clamp(min=1)
    return ((count + step - 1) // step * step).clamp(max=scores.shape[1])


def bucket(patches: int) -> int:
    """Step of adaptive counts for a grid of so many patches."""
    return math.ceil(patches / BUCKETS)


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
            " Patches leave before these blocks."
        )
    return wanted


def _share(keep: object) -> float:
    if not _is_number(keep) or not 0 < float(keep) <= 1:  # type: ignore[arg-type]
        raise ModelError(f"keep is {keep!r}; use a share in (0, 1], or a list with one per stage.")
    return float(keep)  # type: ignore[arg-type]


def _is_number(keep: object) -> bool:
    if isinstance(keep, str) or keep is None or isinstance(keep, bool):
        raise ModelError(f"keep is {keep!r}; use a share in (0, 1], or a list with one per stage.")
    return isinstance(keep, (int, float))


def _known(option: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        names = [name for name in allowed if name is not None]
        raise ModelError(
            f"{option} is {value!r}; use {', '.join(names)}.{closest(str(value), names)}"
        )
