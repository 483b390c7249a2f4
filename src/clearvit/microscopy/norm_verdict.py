"""High- and low-norm tokens of the images of a page, by the rule that `diagnose` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearvit.artifacts.outliers import SIDES, Outliers, Side, find_outliers, longest_run

DEPTHS = (0.73, 0.55, 0.27)  # of the blocks shown where nothing is found; artifacts come late


@dataclass(frozen=True)
class NormFinding:
    """Tokens on one side that are artifacts in some blocks."""

    side: Side
    blocks: tuple[int, ...]  # in a row, from 0
    outliers: tuple[Outliers, ...]  # one for each of these blocks

    @property
    def peak(self) -> int:
        """The block with the most of them."""
        return max(zip(self.outliers, self.blocks, strict=True), key=lambda p: p[0].fraction)[1]

    def sentence(self, depth: int) -> str:
        """Say what was found, with numbers."""
        peak = self.outliers[self.blocks.index(self.peak)]
        first, last = self.blocks[0], self.blocks[-1]
        where = f"in blocks {first} to {last}" if last > first else f"in block {first}"
        beyond = "above" if self.side == "high" else "below"
        return (
            f"{self.side.capitalize()}-norm tokens {where} of 0 to {depth - 1}: at block"
            f" {self.peak}, {peak.count} tokens ({100 * peak.fraction:.2f} %) lie {beyond}"
            f" {peak.cutoff:.2f} times the median norm of their image."
        )


def judge_norms(norms: Tensor) -> tuple[NormFinding, ...]:
    """Find artifact tokens by the norms of all blocks, (I, L, N), the longest run first."""
    found = []
    for side in SIDES:
        blocks = [find_outliers(norms[:, block], side) for block in range(norms.shape[1])]
        run = longest_run(blocks)
        outliers = tuple(one for block in run if (one := blocks[block]) is not None)
        if run:
            found.append(NormFinding(side, tuple(run), outliers))
    return tuple(sorted(found, key=lambda one: len(one.blocks), reverse=True))


def interesting_blocks(findings: Sequence[NormFinding], depth: int) -> list[int]:
    """Choose up to three blocks before the last, the most interesting first.

    Where artifacts are strongest, where they begin, and the block before that; else late, middle
    and early.
    """
    chosen = [round(part * (depth - 1)) for part in DEPTHS]
    if findings:
        first = findings[0]
        chosen = [first.peak, first.blocks[0], first.blocks[0] - 1, *chosen]
    unique = dict.fromkeys(block for block in chosen if 0 <= block < depth - 1)
    return list(unique)[:3]
