"""What a training is worth on groups that took no part in it, nor in any choice.

Groups (classes, runs of queries) lie in parts. The epoch that is judged on one part was chosen on
the others, the model as it came in among the candidates, so that no part judges what it chose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearvit.stats import Interval, bootstrap

RAW = -1  # the model as it came in, as a candidate; 0 is its fitted projection, then epochs
Rows = Mapping[int, Tensor]  # scores (G, 2) of the groups of a part, by candidate


@dataclass(frozen=True)
class FinetuneReport:
    """What a training brought on groups (classes, or runs of queries) that took no part in it.

    P@1 is the fraction of images whose nearest other image has their class, MAP@R the mean average
    precision over as many ranks as there are others of the class; R@1 and R@5 the fractions of
    queries with a positive among the first. All in 0..1.

    Attributes:
        before: The model as it came in.
        after: What was chosen, each group judged by a choice that it took no part in.
        change: Their paired difference, with the ends of its 95 % interval over groups.
        chosen: Epoch of the result; 0 is the fitted projection alone, -1 the model as it came in.
        better: Whether the mean of both differences is above 0, its whole interval too.
        epochs: Mean scores of every epoch over all parts.
        groups: How many judged.
        words: What a group is.
        images: Images that the result was trained on.
    """

    before: dict[str, float]
    after: dict[str, float]
    change: dict[str, tuple[float, float, float]]
    chosen: int
    better: bool
    epochs: tuple[dict[str, float], ...]
    groups: int
    words: str
    images: int

    def __str__(self) -> str:
        """Say before and after in one line."""
        parts = []
        for name, (mean, low, high) in self.change.items():
            parts.append(
                f"{name} {100 * self.before[name]:.1f} before, {100 * self.after[name]:.1f} after"
                f" ({100 * mean:+.1f}, 95 % {100 * low:+.1f} to {100 * high:+.1f})"
            )
        kept = {RAW: "the model as it came in", 0: "the fitted projection"}
        what = kept.get(self.chosen, f"epoch {self.chosen}")
        return f"{self.groups} {self.words} held out in turn: {'; '.join(parts)}. Best: {what}."

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON holds them."""
        return dataclasses.asdict(self)


def judge_parts(
    parts: Sequence[Rows], metrics: Sequence[str], words: str, images: int
) -> FinetuneReport:
    """Choose for each part on the others, judge the choices, and choose once on all of them."""
    known = sorted(set.intersection(*(set(part) for part in parts)))
    judged = []
    for number, part in enumerate(parts):
        others = [one for i, one in enumerate(parts) if i != number]
        judged.append(part[best_candidate(others, known)])
    raw, after = torch.cat([part[RAW] for part in parts]), torch.cat(judged)
    chosen = best_candidate(parts, known)
    score = bootstrap((after - raw).mean(1).numpy())
    change = {name: bootstrap((after - raw)[:, i].numpy()) for i, name in enumerate(metrics)}
    means = {c: torch.cat([part[c] for part in parts]).mean(0).tolist() for c in known}
    return FinetuneReport(
        before=dict(zip(metrics, raw.mean(0).tolist(), strict=True)),
        after=dict(zip(metrics, after.mean(0).tolist(), strict=True)),
        change={name: _ends(one) for name, one in change.items()},
        chosen=chosen,
        better=chosen != RAW and bool(np.isfinite(score.low)) and score.low > 0,
        epochs=tuple(
            {"epoch": float(c), **dict(zip(metrics, values, strict=True))}
            for c, values in means.items()
        ),
        groups=len(raw),
        words=words,
        images=images,
    )


def best_candidate(parts: Sequence[Rows], candidates: Sequence[int]) -> int:
    """Give the candidate of the highest mean score over all groups; the earliest of equals."""
    means = {c: float(torch.cat([part[c] for part in parts]).mean()) for c in candidates}
    return max(candidates, key=lambda c: (means[c], -c))


def split_groups(count: int, parts: int) -> list[list[int]]:
    """Deal groups into parts in turn."""
    return [list(range(count))[number::parts] for number in range(parts)]


def _ends(one: Interval) -> tuple[float, float, float]:
    return one.mean, one.low, one.high
