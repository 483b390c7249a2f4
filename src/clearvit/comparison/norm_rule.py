"""One rule by which the artifact tokens of all models are counted.

The cutoffs are those of one model, the first that has high- or low-norm artifacts, so that numbers
are comparable: a cutoff of its own would hide that a model's tokens are merely less extreme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.outliers import Outliers, Side


@dataclass(frozen=True)
class NormRule:
    """In which blocks and beyond which norm a token counts."""

    model: str  # whose artifacts these are
    blocks: tuple[int, ...]  # from 0
    outliers: tuple[Outliers, ...]  # one per block, each with its cutoff
    peak: int  # the block where that model shows it most
    depth: int  # number of blocks of that model

    @property
    def side(self) -> Side:
        """Whether tokens above or below the cutoffs count."""
        return self.outliers[0].side

    @property
    def cutoff(self) -> float:
        """At the peak, times the median norm of the image."""
        return self.outliers[self.blocks.index(self.peak)].cutoff

    def fractions(self, norms: Tensor) -> tuple[float, ...]:
        """Give the fraction of tokens beyond the cutoff of each block, norms (I, L, N)."""
        pairs = zip(self.blocks, self.outliers, strict=True)
        return tuple(float(one.mask(norms[:, i]).double().mean()) for i, one in pairs)


def find_norm_rule(diagnoses: Sequence[Diagnosis | None]) -> NormRule | None:
    """Take the rule of the first model that has high- or low-norm artifacts; None if none has."""
    for diagnosis in diagnoses:
        for finding in () if diagnosis is None else diagnosis.findings:
            if diagnosis is None or finding.cutoff is None or finding.peak is None:
                continue
            side: Side = "high" if finding.kind == "high-norm" else "low"
            found = [diagnosis.blocks[index].outliers(side) for index in finding.blocks]
            return NormRule(
                model=diagnosis.model,
                blocks=finding.blocks,
                outliers=tuple(one for one in found if one is not None),
                peak=finding.peak,
                depth=len(diagnosis.blocks),
            )
    return None
