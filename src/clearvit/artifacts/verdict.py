"""From numbers to a verdict, with its evidence and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clearvit.artifacts.equivariance import Equivariance
from clearvit.artifacts.norms import BlockReport
from clearvit.artifacts.outliers import Side, longest_run
from clearvit.artifacts.position import PositionStats
from clearvit.options import Size
from clearvit.report.elements import Tone

Verdict = Literal["none", "high-norm", "low-norm", "positional", "non-equivariant"]

MEANING: dict[Verdict, str] = {
    "none": "No artifact tokens were found.",
    "high-norm": "Some patch tokens have a far higher norm than the rest of their image.",
    "low-norm": "Some patch tokens have a far lower norm than the rest of their image.",
    "positional": "Tokens at some positions of the grid share a component in all images.",
    "non-equivariant": "Features change when the image is shifted by whole patches.",
}
TITLES: dict[Verdict, tuple[str, Tone]] = {  # the verdict in words, on terminal and page alike
    "none": ("No artifact tokens", "good"),
    "high-norm": ("High-norm artifact tokens", "bad"),
    "low-norm": ("Low-norm artifact tokens", "bad"),
    "positional": ("Artifacts tied to positions of the grid", "bad"),
    "non-equivariant": ("No artifact tokens, but features change with a shift", "warn"),
}
SHORT: dict[Verdict, str] = {  # in a cell of a table
    "none": "none",
    "high-norm": "high norms",
    "low-norm": "low norms",
    "positional": "tied to positions",
    "non-equivariant": "none, but changes with a shift",
}
ONE_OF_SEVERAL = {"non-equivariant": "Features change with a shift"}  # beside artifact tokens


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and how sure that is."""

    kind: Verdict
    evidence: str  # one sentence with the numbers
    confidence: float  # 0..1: how well resampled images, or two halves of them, agree
    fraction: float  # of the tokens, or positions, concerned
    interval: tuple[float, float]  # 95 % of the fraction
    cutoff: float | None = None  # times the median norm of the image
    blocks: tuple[int, ...] = ()  # where, from 0
    peak: int | None = None  # the block where it is strongest

    @property
    def title(self) -> str:
        """What it is in words, whatever else was found."""
        return ONE_OF_SEVERAL.get(self.kind, TITLES[self.kind][0])

    @property
    def onset(self) -> int | None:
        """The first block that shows it."""
        return self.blocks[0] if self.blocks else None


def judge(
    blocks: Sequence[BlockReport], position_stats: PositionStats, moved: Equivariance | None
) -> tuple[Finding, ...]:
    """List what is wrong, the gravest first; nothing if nothing is."""
    norms = [f for side in ("high", "low") if (f := _norm_finding(blocks, side))]
    norms.sort(key=lambda finding: len(finding.blocks), reverse=True)
    others = [_positional(position_stats), _non_equivariant(moved)]
    return (*norms, *(finding for finding in others if finding is not None))


def next_command(kind: Verdict, model: str, images: str = "", size: Size | None = None) -> str:
    """Name the command that comes next, complete enough to be pasted.

    Args:
        kind: The verdict.
        model: What `clearvit.load` was given.
        images: The folder; a placeholder if it is not known.
        size: What was asked for, (height, width) in pixels; None for the model's own.
    """
    words = [model, images or "FOLDER"]
    if size is not None:
        words += ["--size", f"{size[0]}" if size[0] == size[1] else f"{size[0]}x{size[1]}"]
    if kind == "none":
        return shlex.join(["clearvit", "tokens", *words, "--out", "tokens/"])
    method = ["--method", "positional"] if kind == "positional" else []
    return shlex.join(["clearvit", "cure", *words, *method, "--out", "cured/"])


def _norm_finding(blocks: Sequence[BlockReport], side: Side) -> Finding | None:
    """Join neighboring blocks that have a group of outliers on this side."""
    run = [blocks[i] for i in longest_run([block.outliers(side) for block in blocks])]
    if not run:
        return None
    peak = max(run, key=lambda block: block.strength(side))
    group = peak.outliers(side)
    assert group is not None
    word, beyond = ("higher", "above") if side == "high" else ("lower", "below")
    ends = f"blocks {run[0].index} to {run[-1].index}" if len(run) > 1 else "the last block"
    return Finding(
        kind="high-norm" if side == "high" else "low-norm",
        evidence=(
            f"In {ends} (of 0 to {len(blocks) - 1}), some patch tokens have a {word} norm than the"
            f" rest: at block {peak.index}, {count_of(group.count, 'token')}"
            f" ({100 * group.fraction:.2f} %) lie {beyond} {group.cutoff:.2f} x the median of their"
            f" image, where at most {group.expected:.0f} would be expected without artifacts."
        ),
        confidence=max(one.confidence for b in run if (one := b.outliers(side))),
        fraction=group.fraction,
        interval=group.interval,
        cutoff=group.cutoff,
        blocks=tuple(block.index for block in run),
        peak=peak.index,
    )


def _positional(position_stats: PositionStats) -> Finding | None:
    mask = position_stats.find()
    if mask is None:
        return None
    fraction = float(mask.float().mean())
    return Finding(
        kind="positional",
        evidence=(
            f"{int(mask.sum())} of {len(mask)} positions of the grid carry a component that"
            f" {position_stats.images} images share; at the strongest position it has"
            f" {float(position_stats.ratio.max()):.1f} x the energy of what varies between images."
        ),
        confidence=max(0.0, float(position_stats.agreement[mask].mean())),
        fraction=fraction,
        interval=(fraction, fraction),
    )


def _non_equivariant(moved: Equivariance | None) -> Finding | None:
    if moved is None or not moved.matters:
        return None
    low, high = min(moved.ratios), max(moved.ratios)
    return Finding(
        kind="non-equivariant",
        evidence=(
            f"When the image is shifted by {count_of(moved.patches, 'patch', 'patches')}, the same"
            f" content changes its feature by {100 * moved.ratio:.0f} % of the distance between"
            f" different contents ({100 * low:.0f} to {100 * high:.0f} % over"
            f" {count_of(len(moved.ratios), 'image')}). At this size more than"
            f" {100 * moved.level:.0f} % is called a finding."
        ),
        confidence=moved.confidence,
        fraction=1.0,
        interval=(1.0, 1.0),
    )


def count_of(number: int, one: str, several: str = "") -> str:
    """Write a number with its noun: 1 image, 8 images."""
    return f"{number} {one if number == 1 else several or one + 's'}"
