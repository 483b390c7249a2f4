"""Does my ViT have artifact tokens, which, where, since which block?

Darcet et al., "Vision Transformers Need Registers", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.diagnose.blocks import QUANTILES, BlockReport, block_report, flagged
from clearvit.diagnose.equivariance import VIEWS, Equivariance, equivariance
from clearvit.diagnose.experiments import Experiments, labels_of, run_experiments
from clearvit.diagnose.gallery import COUNT, Gallery, gallery
from clearvit.diagnose.observe import Observations, observe
from clearvit.diagnose.verdict import MEANING, Finding, Verdict, judge, next_command
from clearvit.errors import ImageError, ModelError
from clearvit.images import Picture, find_images, spread
from clearvit.progress import Meter, Progress
from clearvit.tails import Tail, find_tail

T = TypeVar("T")
QUICK_IMAGES, QUICK_SHIFTED = 32, 4


@dataclass(frozen=True)
class DiagnoseConfig:
    """Options of `diagnose` and of `clearvit diagnose`."""

    size: int | tuple[int, int] | None = None  # pixels; None is the backbone's own size
    limit: int = 64  # images, spread evenly over what is given
    batch: int = 4  # images per forward pass
    equivariance: bool = True  # shift a few of the images, three passes each
    shifted: int = 8  # how many
    experiments: bool = True  # the paper's probes: another pass, and linear probes on its tokens
    quick: bool = False  # 32 images, 4 shifted, no probes: two minutes on a laptop
    seed: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """What was found, with everything needed to check it."""

    model: str
    size: tuple[int, int]  # (height, width) in pixels
    positions: str  # rule for resizing position embeddings; it changes features too
    findings: tuple[Finding, ...]  # the gravest first; empty if nothing is wrong
    blocks: tuple[BlockReport, ...]
    after_norm: Tail | None  # what reading the norms after the final norm would find
    equivariance: Equivariance | None
    experiments: Experiments | None
    observations: Observations = field(repr=False)
    gallery: Gallery | None = field(default=None, repr=False)  # a few photos to draw

    @property
    def verdict(self) -> Verdict:
        """The gravest finding, or "none"."""
        return self.findings[0].kind if self.findings else "none"

    @property
    def cutoff(self) -> float | None:
        """Flagged tokens lie beyond this many times the median norm of their image."""
        return self.findings[0].cutoff if self.findings else None

    @property
    def onset(self) -> int | None:
        """First block that shows the verdict, from 0."""
        return self.findings[0].onset if self.findings else None

    @property
    def fraction(self) -> float:
        """Share of the tokens concerned, at the block where it is strongest."""
        return self.findings[0].fraction if self.findings else 0.0

    @property
    def peak(self) -> int:
        """The block to look at: where the verdict is strongest, else the last."""
        found = [finding.peak for finding in self.findings if finding.peak is not None]
        return found[0] if found else len(self.blocks) - 1

    @property
    def next_command(self) -> str:
        """What to run next."""
        return next_command(self.verdict, self.model)

    def flags(self, block: int | None = None) -> Tensor:
        """Mark the artifact tokens of a block (the peak by default), (I, N) bool."""
        report = self.blocks[self.peak if block is None else block]
        return flagged(self.observations.norms[:, report.index], report.high, report.low)

    def place_map(self, block: int | None = None) -> Tensor:
        """Share of images in which a place of the grid is flagged, (H, W)."""
        shares: Tensor = self.flags(block).float().mean(0).unflatten(0, self.observations.grid)
        return shares

    def to_json(self) -> dict[str, Any]:
        """All numbers, as plain JSON."""
        seen = self.observations
        return {
            "model": self.model,
            "verdict": self.verdict,
            "meaning": MEANING[self.verdict],
            "cutoff": self.cutoff,
            "onset": self.onset,
            "fraction": self.fraction,
            "next": self.next_command,
            "images": len(seen.names),
            "skipped": [asdict(bad) for bad in seen.skipped],
            "size": list(self.size),
            "grid": list(seen.grid),
            "positions": self.positions,
            "findings": [{**asdict(f), "onset": f.onset} for f in self.findings],
            "quantile_levels": list(QUANTILES),
            "blocks": [block.to_json() for block in self.blocks],
            "place_map": [[round(v, 4) for v in row] for row in self.place_map().tolist()],
            "after_norm": None if self.after_norm is None else asdict(self.after_norm),
            "equivariance": _moved_json(self.equivariance),
            "experiments": None if self.experiments is None else self.experiments.to_json(),
        }

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that needs no network, and a JSON file with the same numbers."""
        from clearvit.diagnose.page import write_report

        return write_report([self], Path(path))


def diagnose(
    backbone: Backbone,
    images: Any,
    *,
    config: DiagnoseConfig | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Find artifact tokens: which kind, where, since which block.

    Args:
        backbone: A ViT; grid-only backbones have no blocks to look into.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images. A folder of
            class folders also gives labels for the classification probe.
        config: Size, number of images, what to leave out.
        progress: Told how many forward passes are done, of how many.
    """
    config = config or DiagnoseConfig()
    vit = _checked(backbone)
    pictures = find_images(images)
    chosen, shifted = _chosen(pictures, config)
    size = vit.fitting_size(config.size)
    passes = Meter(progress, passes_needed(len(pictures), config))
    seen = observe(vit, chosen, size=size, batch=config.batch, advance=passes.advance)
    moved = None
    if shifted:
        moved = equivariance(vit, shifted, size=size, batch=config.batch, advance=passes.advance)
    blocks = tuple(block_report(seen, i, seed=config.seed) for i in range(vit.depth))
    result = Diagnosis(
        model=vit.name,
        size=size,
        positions=vit.positions,
        findings=judge(blocks, seen.placed, moved),
        blocks=blocks,
        after_norm=find_tail(seen.normed, "high", seed=config.seed),
        equivariance=moved,
        experiments=None,
        observations=seen,
    )
    result = replace(result, gallery=gallery(vit, chosen, result))
    passes.advance(min(COUNT, len(seen.names)))
    if not config.experiments or config.quick:
        return result
    return replace(result, experiments=_experiments(vit, pictures, result, config, passes))


def passes_needed(images: int, config: DiagnoseConfig) -> int:
    """How many images the diagnosis sends through the network, repeats counted."""
    chosen, shifted = _chosen(range(images), config)
    again = len(chosen) if config.experiments and not config.quick else 0
    return len(chosen) + VIEWS * len(shifted) + min(COUNT, len(chosen)) + again


def _experiments(
    backbone: VitBackbone,
    pictures: Sequence[Picture],
    found: Diagnosis,
    config: DiagnoseConfig,
    passes: Meter,
) -> Experiments:
    report = found.blocks[found.peak]
    return run_experiments(
        backbone,
        pictures,
        block=report.index,
        outlier_rule=lambda norms: flagged(norms, report.high, report.low),
        size=found.size,
        labels=labels_of(pictures),
        limit=config.limit,
        batch=config.batch,
        advance=passes.advance,
    )


def _chosen(pictures: Sequence[T], config: DiagnoseConfig) -> tuple[list[T], list[T]]:
    """Spread the images to look at, and those to shift, evenly over what is given."""
    if config.limit < 1:
        raise ImageError(f"limit is {config.limit}; give at least 1.")
    chosen = spread(pictures, QUICK_IMAGES if config.quick else config.limit)
    shifted = QUICK_SHIFTED if config.quick else config.shifted
    return chosen, spread(chosen, shifted if config.equivariance else 0)


def _checked(backbone: Backbone) -> VitBackbone:
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' is a grid-only backbone: there are no blocks to look into. Its"
            f" final features can be drawn: clearvit look {backbone.name} PHOTO…"
        )
    return backbone


def _moved_json(moved: Equivariance | None) -> dict[str, Any] | None:
    return None if moved is None else {**asdict(moved), "ratio": moved.ratio}
