"""From numbers to a verdict, with its evidence and the next command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clearvit.diagnose.blocks import BlockReport
from clearvit.diagnose.equivariance import NOTICEABLE, Equivariance
from clearvit.diagnose.positional import Placed
from clearvit.tails import Side, lasting

Verdict = Literal["none", "high-norm", "low-norm", "positional", "non-equivariant"]

MEANING: dict[Verdict, str] = {
    "none": "No artifact tokens were found.",
    "high-norm": "Some patch tokens are far longer than the rest of their image.",
    "low-norm": "Some patch tokens are far shorter than the rest of their image.",
    "positional": "Tokens at some places of the grid share a component in all images.",
    "non-equivariant": "Features change when the picture is shifted by whole patches.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and how sure that is."""

    kind: Verdict
    evidence: str  # one sentence with the numbers
    confidence: float  # 0..1: how well resampled images, or two halves of them, agree
    fraction: float  # of the tokens, or places, concerned
    interval: tuple[float, float]  # 95 % of the fraction
    cutoff: float | None = None  # times the median norm of the image
    blocks: tuple[int, ...] = ()  # where, from 0
    peak: int | None = None  # the block where it is strongest

    @property
    def onset(self) -> int | None:
        """The first block that shows it."""
        return self.blocks[0] if self.blocks else None


def judge(
    blocks: Sequence[BlockReport], placed: Placed, moved: Equivariance | None
) -> tuple[Finding, ...]:
    """List what is wrong, the gravest first; nothing if nothing is."""
    norms = [f for side in ("high", "low") if (f := _norm_finding(blocks, side))]
    norms.sort(key=lambda finding: len(finding.blocks), reverse=True)
    others = [_positional(placed), _non_equivariant(moved)]
    return (*norms, *(finding for finding in others if finding is not None))


def next_command(kind: Verdict, model: str) -> str:
    """Name the command that comes next."""
    if kind == "none":
        return f"clearvit tokens {model} FOLDER --out tokens/"
    return f"clearvit cure {model} FOLDER --out cured/"


def _norm_finding(blocks: Sequence[BlockReport], side: Side) -> Finding | None:
    """Join neighbouring blocks that have a tail on this side."""
    run = [blocks[i] for i in lasting([block.tail(side) for block in blocks])]
    if not run:
        return None
    peak = max(run, key=lambda block: block.strength(side))
    tail = peak.tail(side)
    assert tail is not None
    word, beyond = ("longer", "above") if side == "high" else ("shorter", "below")
    ends = f"blocks {run[0].index + 1} to {run[-1].index + 1}" if len(run) > 1 else "the last block"
    return Finding(
        kind="high-norm" if side == "high" else "low-norm",
        evidence=(
            f"In {ends} of {len(blocks)}, patch tokens {word} than the rest form a mode of their"
            f" own: at block {peak.index + 1}, {tail.count} tokens ({100 * tail.fraction:.2f} %)"
            f" lie {beyond} {tail.cutoff:.2f} x the median of their image, where a single mode"
            f" explains at most {tail.expected:.1f}."
        ),
        confidence=max(block_tail.confidence for b in run if (block_tail := b.tail(side))),
        fraction=tail.fraction,
        interval=tail.interval,
        cutoff=tail.cutoff,
        blocks=tuple(block.index for block in run),
        peak=peak.index,
    )


def _positional(placed: Placed) -> Finding | None:
    flags = placed.find()
    if flags is None:
        return None
    share = float(flags.float().mean())
    return Finding(
        kind="positional",
        evidence=(
            f"{int(flags.sum())} of {len(flags)} places of the grid carry a component that"
            f" {placed.images} images share; at the strongest place it has"
            f" {float(placed.ratio.max()):.1f} x the energy of what varies between images."
        ),
        confidence=max(0.0, float(placed.agreement[flags].mean())),
        fraction=share,
        interval=(share, share),
    )


def _non_equivariant(moved: Equivariance | None) -> Finding | None:
    if moved is None or moved.ratio <= NOTICEABLE:
        return None
    low, high = min(moved.ratios), max(moved.ratios)
    return Finding(
        kind="non-equivariant",
        evidence=(
            f"Shifted by {moved.patches} whole patches, the same content changes its feature by"
            f" {100 * moved.ratio:.0f} % of the distance between different contents (over"
            f" {len(moved.ratios)} images: {100 * low:.0f} to {100 * high:.0f} %)."
        ),
        confidence=moved.confidence,
        fraction=1.0,
        interval=(1.0, 1.0),
    )
