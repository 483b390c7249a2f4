"""What happens to the artifact tokens in the blocks where the raw model has them?

Every model is counted with the cutoffs of one model, the first that has artifacts of the norm, so
that numbers are comparable: a cutoff of its own would hide that tokens are merely less extreme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearvit.diagnose.diagnosis import Diagnosis
from clearvit.tails import Side, Tail


@dataclass(frozen=True)
class NormRule:
    """Where and from which norm on a token counts."""

    model: str  # whose artifacts these are
    blocks: tuple[int, ...]  # from 0
    tails: tuple[Tail, ...]  # one per block, each with its cutoff
    peak: int  # the block where that model shows it most
    depth: int  # number of blocks of that model

    @property
    def side(self) -> Side:
        """Whether tokens above or below the cutoffs count."""
        return self.tails[0].side

    @property
    def cutoff(self) -> float:
        """At the peak, times the median norm of the image."""
        return self.tails[self.blocks.index(self.peak)].cutoff

    def shares(self, norms: Tensor) -> tuple[float, ...]:
        """Give the share of tokens beyond the cutoff of each block, norms (I, L, N)."""
        pairs = zip(self.blocks, self.tails, strict=True)
        return tuple(float(tail.flags(norms[:, i]).double().mean()) for i, tail in pairs)


def norm_rule(diagnoses: Sequence[Diagnosis | None]) -> NormRule | None:
    """Take the rule of the first model that has artifacts of the norm; None if no model has."""
    for diagnosis in diagnoses:
        for finding in () if diagnosis is None else diagnosis.findings:
            if diagnosis is None or finding.cutoff is None or finding.peak is None:
                continue
            side: Side = "high" if finding.kind == "high-norm" else "low"
            tails = [diagnosis.blocks[index].tail(side) for index in finding.blocks]
            return NormRule(
                model=diagnosis.model,
                blocks=finding.blocks,
                tails=tuple(tail for tail in tails if tail is not None),
                peak=finding.peak,
                depth=len(diagnosis.blocks),
            )
    return None
