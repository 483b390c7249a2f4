"""Several models on the same images; the first is the raw model, the baseline of the others."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.report.look import observe
from clearvit.backbones.backbone import Backbone
from clearvit.comparison.comparison_table import percent, table_cells
from clearvit.comparison.config import CompareConfig
from clearvit.comparison.norm_rule import NormRule, find_norm_rule
from clearvit.comparison.pca_panels import PanelColumn, PanelRow, color_maps, shrink
from clearvit.comparison.reference import FEW, Reference, average_views, view_count
from clearvit.comparison.rows import (
    Baseline,
    ComparisonRow,
    ReferenceGap,
    make_row,
    measure_gap,
    reference_patches,
)
from clearvit.comparison.structures import Structures, compare_structures
from clearvit.comparison.study import (
    EvalImages,
    Study,
    collect_images,
    count_passes,
    study_model,
    time_models,
)
from clearvit.errors import ModelError
from clearvit.images import Skipped, read_image, spread_evenly
from clearvit.options import Size, with_options
from clearvit.progress import Meter, Progress
from clearvit.report.text_table import render_table


@dataclass(frozen=True, repr=False)
class Comparison:
    """One row per model, in the order given; the first is the baseline."""

    rows: tuple[ComparisonRow, ...]
    rule: NormRule | None  # by which artifact tokens are counted; None if no model has any
    gap: ReferenceGap
    size: Size  # (height, width) in pixels, of the first model
    images: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    labeled: int  # images behind the kNN accuracy
    neighbors: int
    diagnoses: tuple[Diagnosis | None, ...] = field(repr=False)
    panel_columns: tuple[PanelColumn, ...] = field(repr=False)
    panel_rows: tuple[PanelRow, ...] = field(repr=False)
    structures: Structures | None = field(default=None, repr=False)  # where it was asked for
    folder: str = ""  # the images, as they were named; empty if they were not named by one path

    @property
    def best(self) -> ComparisonRow:
        """The model nearest to the many-view reference; of equals, the first."""
        known = [row for row in self.rows if row.distance is not None]
        return min(known, key=lambda row: row.distance or 0.0) if known else self.rows[-1]

    @property
    def next_command(self) -> str:
        """What to run next."""
        words = ("clearvit", "tokens", self.best.model, self.folder or "FOLDER", "--out", "tokens/")
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        """All numbers, as plain JSON but for infinities."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "rule": None if self.rule is None else asdict(self.rule),
            "gap": asdict(self.gap),
            "size": list(self.size),
            "images": list(self.images),
            "skipped": [asdict(bad) for bad in self.skipped],
            "labeled": self.labeled,
            "neighbors": self.neighbors,
            "structures": None
            if self.structures is None
            else [one.to_json() for one in self.structures.measured],
            "next": self.next_command,
        }

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from clearvit.report.notebook import card

        height, width = self.size
        count = f"{len(self.images)} image{'s' * (len(self.images) != 1)}"
        return card(f"Comparison on {count} at {height}x{width} px", table=table_cells(self))

    def text(self) -> str:
        """Write the table with aligned columns."""
        return render_table(*table_cells(self))

    def save(self, out: str | Path, *, microscope: str | None = None) -> Path:
        """Write `compare.html`, which needs no other file, `compare.json` and `pca.png`.

        Args:
            out: The directory.
            microscope: Name of a page of `cv.microscope` in that directory, to link to.
        """
        from clearvit.comparison.comparison_page import write_comparison

        return write_comparison(self, Path(out), microscope)


@with_options(CompareConfig)
def compare(
    backbones: Backbone | Sequence[Backbone],
    images: Any,
    *,
    config: CompareConfig,
    progress: Progress | None = None,
) -> Comparison:
    """Measure how the tokens of models differ from those of the first one, and at what cost.

    Args:
        backbones: The raw model first, then cured, denoised or pruned ones; one alone will do.
            Any backbone; what cannot be measured of one is None, and a note says why.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images. A folder of
            class folders also gives the labels for the kNN accuracy.
        config: All options at once, instead of keywords.
        progress: Called with the forward passes done and all of them; a bar by default.

    Raises:
        ImageError: There is no image that can be read.
        ModelError: There is no model.
    """
    config = config.effective()
    models = [backbones] if isinstance(backbones, Backbone) else list(backbones)
    if not models:
        raise ModelError("there is nothing to compare; give at least one model.")
    data = collect_images(models[0], images, config)
    meter = Meter(progress, _count_all_passes(models, data, config), "compare")
    studies = [
        study_model(backbone, name, data, config, meter.advance)
        for backbone, name in zip(models, number_names([m.name for m in models]), strict=True)
    ]
    average = average_views(models[0], data.reference, data.size, config, meter.advance)
    pixels = [_first_pixels(backbone, data) for backbone in models]
    times = time_models(models, pixels, rounds=config.rounds, advance=meter.advance)
    gap = measure_gap(studies[0], data, average)
    rule = find_norm_rule([one.diagnosis for one in studies])
    baseline = Baseline(studies[0], times[0], data, average, gap, rule, config.neighbors)
    result = _make_comparison(studies, times, baseline, config.shown_images)
    if config.structure:
        photos = {row.name: row.image for row in result.panel_rows}
        result = replace(result, structures=compare_structures(studies, data, photos, config.masks))
    if isinstance(images, (str, Path)):
        result = replace(result, folder=str(images))
    meter.finish()
    return result


def _make_comparison(
    studies: Sequence[Study], times: Sequence[Sequence[float]], baseline: Baseline, shown: int
) -> Comparison:
    rows = [make_row(one, own, baseline) for one, own in zip(studies, times, strict=True)]
    data = baseline.data
    return Comparison(
        rows=tuple(rows),
        rule=baseline.rule,
        gap=baseline.gap,
        size=data.size,
        images=tuple(image.name for image in data.images),
        skipped=data.skipped,
        labeled=len(data.labeled),
        neighbors=baseline.neighbors,
        diagnoses=tuple(one.diagnosis for one in studies),
        panel_columns=_panel_columns(studies, rows, baseline.gap),
        panel_rows=_panel_rows(studies, data, baseline.average, shown),
    )


def _count_all_passes(models: Sequence[Backbone], data: EvalImages, config: CompareConfig) -> int:
    height, width = data.size
    grid = (height // models[0].patch[0], width // models[0].patch[1])
    alone = sum(count_passes(backbone, data, config) for backbone in models)
    views = view_count(grid, models[0].patch, config) + FEW
    timed = len(models) * (config.rounds + 1)
    shown = min(config.shown_images, len(data.reference))
    return alone + views * len(data.reference) + timed + shown


def _first_pixels(backbone: Backbone, data: EvalImages) -> Tensor:
    image = read_image(data.reference[0].source)
    return backbone.preprocessing(image, backbone.fitting_size(data.size))[None]


def _panel_rows(
    studies: Sequence[Study], data: EvalImages, average: Reference, count: int
) -> tuple[PanelRow, ...]:
    """Color the tokens of a few images, by model and last as the reference has them."""
    numbers = spread_evenly(range(len(data.reference)), count)
    if not numbers:
        return ()
    patches = [(reference_patches(one, data), one.tokens.grid) for one in studies]
    patches.append((average.many, studies[0].tokens.grid))
    maps = [[tokens[i].T.unflatten(1, grid) for i in numbers] for tokens, grid in patches]
    shown = [data.reference[i] for i in numbers]
    seen = observe(studies[0].backbone, shown, size=data.size, layers=())
    return tuple(
        PanelRow(one.name, shrink(one.photo), one.aspect, colors)
        for one, colors in zip(seen, zip(*color_maps(maps), strict=True), strict=True)
    )


def _panel_columns(
    studies: Sequence[Study], rows: Sequence[ComparisonRow], gap: ReferenceGap
) -> tuple[PanelColumn, ...]:
    width = studies[0].backbone.width
    columns: list[PanelColumn] = []
    for one, row in zip(studies, rows, strict=True):
        note = "" if row.distance is None else f"distance {row.distance:.4f}"
        if columns and row.gap_closed is not None:
            note += f", gap closed {percent(row.gap_closed)}"
        own = "colors of its own" if one.backbone.width != width else ""
        columns.append(PanelColumn(row.model, own or note))
    return (*columns, PanelColumn("reference", f"{gap.views} views of the first model"))


def number_names(names: Sequence[str]) -> list[str]:
    """Number models that are called the same."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return result
