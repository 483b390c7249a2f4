"""Does my ViT have artifact tokens, which, where, since which block?

Darcet et al., "Vision Transformers Need Registers", ICLR 2024.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearvit.artifacts.attention_sinks import IMAGES, AttentionStats, measure_attention
from clearvit.artifacts.config import DiagnoseConfig
from clearvit.artifacts.equivariance import VIEWS, Equivariance, measure_equivariance
from clearvit.artifacts.experiments import (
    Experiments,
    ProbeSettings,
    labels_of,
    run_experiments,
)
from clearvit.artifacts.norms import QUANTILES, BlockReport, block_report
from clearvit.artifacts.observe import Observations, observe
from clearvit.artifacts.outliers import Outliers, combine_masks, find_outliers
from clearvit.artifacts.report.examples import COUNT, ExampleImage, pick_examples, rank_images
from clearvit.artifacts.structure import Structure, measure_structure
from clearvit.artifacts.verdict import (
    MEANING,
    TITLES,
    Finding,
    Verdict,
    count_of,
    judge,
    next_command,
)
from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.images import ImageSource, find_images, spread_evenly
from clearvit.options import with_options
from clearvit.progress import Meter, Progress

T = TypeVar("T")
QUICK_IMAGES, QUICK_SHIFTED = 32, 4


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What was found, with everything needed to check it."""

    model: str
    size: tuple[int, int]  # (height, width) in pixels
    positions: str  # rule for resizing position embeddings; it changes features too
    findings: tuple[Finding, ...]  # the gravest first; empty if nothing is wrong
    blocks: tuple[BlockReport, ...]
    after_norm: Outliers | None  # what reading the norms after the final norm would find
    equivariance: Equivariance | None
    experiments: Experiments | None
    observations: Observations = field(repr=False)
    examples: tuple[ExampleImage, ...] = field(default=(), repr=False)  # a few images to draw
    attention: AttentionStats | None = field(default=None, repr=False)  # None without attention
    folder: str = ""  # the images, as they were named; empty if they were not named by one path
    asked_size: tuple[int, int] | None = None  # the size that was asked for, if any

    def __str__(self) -> str:
        """Give the verdict in words with its evidence, in a few lines."""
        lines = [
            f"  {one.title} (confidence {100 * one.confidence:.0f} %). {one.evidence}"
            for one in self.findings
        ]
        lines = lines or [f"  {self._all_clear()}"]
        seen = self.attention
        if seen is not None and (seen.fraction or seen.register_fraction):
            lines.append(f"  {self.attention}")
        return "\n".join([f"{self.model}: {self.title}", *lines])

    def __repr__(self) -> str:
        count = count_of(len(self.observations.names), "image")
        return f"Diagnosis('{self.model}', {self.size[0]}x{self.size[1]} px, {count}: {self.title})"

    def _repr_html_(self) -> str:
        """Show the verdict in a notebook: what, how sure, and where on the grid."""
        from clearvit.report.notebook import card, heat, png_of

        text = "\n".join([one.evidence for one in self.findings] or [self._all_clear()])
        norms = self.observations.norms[:, self.peak].double().mean(0)
        grid = norms.unflatten(0, self.observations.grid).numpy()
        images = [(png_of(heat(grid)), f"mean norm at block {self.peak}")]
        if self.findings and self.findings[0].cutoff is not None:
            where = self.position_map().double().numpy()
            images.append((png_of(heat(where)), "how often a position is flagged"))
        title, tone = f"{self.model}: {self.title}", TITLES[self.verdict][1]
        return card(title, text=text, tone=tone, images=images, code=self.next_command)

    def _all_clear(self) -> str:
        moved = self.equivariance
        if moved is None:
            return MEANING["none"]
        return (
            f"{MEANING['none']} Shifting an image changes features by {100 * moved.ratio:.0f} % of"
            f" the distance between different contents, not clearly more than the"
            f" {100 * moved.level:.0f} % that count at this size: a cure has little to gain."
        )

    @property
    def title(self) -> str:
        """The verdict in words."""
        return TITLES[self.verdict][0]

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
        """Fraction of the tokens concerned, at the block where it is strongest."""
        return self.findings[0].fraction if self.findings else 0.0

    @property
    def peak(self) -> int:
        """The block to look at: where the verdict is strongest, else the last."""
        found = [finding.peak for finding in self.findings if finding.peak is not None]
        return found[0] if found else len(self.blocks) - 1

    @cached_property
    def structure(self) -> Structure | None:
        """How the patches of the example images relate to each other; None without examples."""
        maps = [example.map for example in self.examples]
        return measure_structure(torch.stack(maps)) if maps else None

    @property
    def next_command(self) -> str:
        """What to run next."""
        return next_command(self.verdict, self.model, self.folder, self.asked_size)

    def outlier_mask(self, block: int | None = None) -> Tensor:
        """Mark the artifact tokens of a block (the peak by default), (I, N) bool."""
        report = self.blocks[self.peak if block is None else block]
        norms = self.observations.norms[:, report.index]
        return combine_masks(norms, (report.high, report.low))

    def position_map(self, block: int | None = None) -> Tensor:
        """Fraction of images in which a position of the grid is flagged, (H, W)."""
        fractions: Tensor = (
            self.outlier_mask(block).float().mean(0).unflatten(0, self.observations.grid)
        )
        return fractions

    def to_json(self) -> dict[str, Any]:
        """All numbers, as plain JSON."""
        seen = self.observations
        return {
            "model": self.model,
            "verdict": self.verdict,
            "title": self.title,
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
            "position_map": [[round(v, 4) for v in row] for row in self.position_map().tolist()],
            "after_norm": None if self.after_norm is None else asdict(self.after_norm),
            "equivariance": _equivariance_json(self.equivariance),
            "structure": None if self.structure is None else self.structure.to_json(),
            "attention": None if self.attention is None else self.attention.to_json(),
            "experiments": None if self.experiments is None else self.experiments.to_json(),
        }

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that needs no network, and a JSON file with the same numbers."""
        from clearvit.artifacts.report.diagnosis_page import write_report

        return write_report([self], Path(path))


@with_options(DiagnoseConfig)
def diagnose(
    backbone: Backbone,
    images: Any,
    *,
    config: DiagnoseConfig,
    progress: Progress | None = None,
) -> Diagnosis:
    """Find artifact tokens: which kind, where, since which block.

    Args:
        backbone: A ViT; grid-only backbones have no blocks to look into.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images. A folder of
            class folders also gives labels for the classification probe.
        config: All options at once, instead of keywords.
        progress: Called with the number of images that went through the network.
    """
    vit = _require_vit(backbone)
    sources = find_images(images)
    chosen, shifted = _choose_images(sources, config)
    size = vit.fitting_size(config.size)
    passes = Meter(progress, passes_needed(len(sources), config))
    pace: dict[str, Any] = {"size": size, "batch": config.batch, "advance": passes.advance}
    seen = observe(vit, chosen, **pace)
    moved = measure_equivariance(vit, shifted, **pace) if shifted else None
    blocks = tuple(block_report(seen, i, seed=config.seed) for i in range(vit.depth))
    result = Diagnosis(
        model=vit.name,
        size=size,
        positions=vit.positions,
        findings=judge(blocks, seen.position_stats, moved),
        blocks=blocks,
        after_norm=find_outliers(seen.normed, "high", seed=config.seed),
        equivariance=moved,
        experiments=None,
        observations=seen,
        folder=str(images) if isinstance(images, (str, Path)) else "",
        asked_size=None if config.size is None else size,
    )
    result = replace(result, examples=pick_examples(vit, chosen, result))
    passes.advance(min(COUNT, len(seen.names)))
    result = replace(result, attention=_attention(vit, chosen, result, passes))
    if not config.experiments or config.quick:
        return result
    return replace(result, experiments=_experiments(vit, sources, result, config, passes))


def passes_needed(images: int, config: DiagnoseConfig) -> int:
    """How many images the diagnosis sends through the network, repeats counted."""
    chosen, shifted = _choose_images(range(images), config)
    again = len(chosen) if config.experiments and not config.quick else 0
    looked_at = min(COUNT, len(chosen)) + min(IMAGES, len(chosen))  # drawn; read for attention
    return len(chosen) + VIEWS * len(shifted) + looked_at + again


def _attention(
    backbone: VitBackbone, sources: Sequence[ImageSource], found: Diagnosis, passes: Meter
) -> AttentionStats | None:
    """Read the attention of the images with most artifact tokens."""
    by_name = {source.name: source for source in sources}
    ranked = rank_images(found, IMAGES)
    chosen = [by_name[found.observations.names[i]] for i in ranked]
    stats = measure_attention(
        backbone, chosen, found.outlier_mask()[ranked], size=found.size, advance=passes.advance
    )
    if stats is None:
        passes.advance(len(ranked))
    return stats


def _experiments(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    found: Diagnosis,
    config: DiagnoseConfig,
    passes: Meter,
) -> Experiments:
    report = found.blocks[found.peak]
    settings = ProbeSettings(found.size, labels_of(sources), limit=config.limit, batch=config.batch)
    return run_experiments(
        backbone,
        sources,
        block=report.index,
        outlier_rule=lambda norms: combine_masks(norms, (report.high, report.low)),
        settings=settings,
        advance=passes.advance,
    )


def _choose_images(sources: Sequence[T], config: DiagnoseConfig) -> tuple[list[T], list[T]]:
    """Spread the images to look at, and those to shift, evenly over what is given."""
    chosen = spread_evenly(sources, QUICK_IMAGES if config.quick else config.limit)
    shifted = QUICK_SHIFTED if config.quick else config.shifted
    return chosen, spread_evenly(chosen, shifted if config.equivariance else 0)


def _require_vit(backbone: Backbone) -> VitBackbone:
    inner = getattr(backbone, "inner", None)  # of a backbone that averages views
    if isinstance(inner, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' averages views: it has no blocks of its own to look into. Diagnose"
            f" '{inner.name}'."
        )
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' is a grid-only backbone: there are no blocks to look into. Its"
            f" final features can be drawn: clearvit look {backbone.name} PHOTO…"
        )
    own = copy.copy(backbone)
    own.fine = None  # blocks are read on the network's own grid
    return own


def _equivariance_json(moved: Equivariance | None) -> dict[str, Any] | None:
    return None if moved is None else {**asdict(moved), "ratio": moved.ratio}
