"""Several models on the same images: the first is raw, the others say what became of it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.compare.config import CompareConfig
from clearvit.compare.cost import milliseconds
from clearvit.compare.norms import NormRule, norm_rule
from clearvit.compare.picture import Column, Exhibit, coloured, small
from clearvit.compare.reference import FEW, Reference, reference, view_count
from clearvit.compare.rows import (
    Against,
    Row,
    Yardstick,
    held_patches,
    make_row,
    measure_yardstick,
)
from clearvit.compare.study import Material, Study, gather, study, study_passes
from clearvit.compare.table import percent
from clearvit.diagnose.diagnosis import Diagnosis
from clearvit.diagnose.look import observe
from clearvit.errors import ModelError
from clearvit.images import Skipped, read_image, spread
from clearvit.progress import Meter, Progress

"""Called with the number of forward passes that are done and of all of them."""


@dataclass(frozen=True)
class Comparison:
    """One row per model, in the order given; the first is what the others are held against."""

    rows: tuple[Row, ...]
    rule: NormRule | None  # by which artifact tokens are counted; None if no model has any
    yardstick: Yardstick
    size: Size  # (height, width) in pixels, of the first model
    images: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    labelled: int  # images behind the nearest-neighbour accuracy
    neighbours: int
    diagnoses: tuple[Diagnosis | None, ...] = field(repr=False)
    columns: tuple[Column, ...] = field(repr=False)
    exhibits: tuple[Exhibit, ...] = field(repr=False)

    @property
    def best(self) -> Row:
        """The model nearest to the many-view reference; of equals, the first."""
        known = [row for row in self.rows if row.distance is not None]
        return min(known, key=lambda row: row.distance or 0.0) if known else self.rows[-1]

    @property
    def next_command(self) -> str:
        """What to run next."""
        return f"clearvit tokens {shlex.quote(self.best.model)} FOLDER --out tokens/"

    def to_json(self) -> dict[str, Any]:
        """All numbers, as plain JSON but for infinities."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "rule": None if self.rule is None else asdict(self.rule),
            "yardstick": asdict(self.yardstick),
            "size": list(self.size),
            "images": list(self.images),
            "skipped": [asdict(bad) for bad in self.skipped],
            "labelled": self.labelled,
            "neighbours": self.neighbours,
            "next": self.next_command,
        }

    def save(self, out: str | Path) -> Path:
        """Write `compare.html`, which needs no other file, `compare.json` and `pca.png`."""
        from clearvit.compare.page import write_comparison

        return write_comparison(self, Path(out))


def compare(
    backbones: Backbone | Sequence[Backbone],
    images: Any,
    *,
    config: CompareConfig | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure what became of the first model's tokens in the others, and at what cost.

    Args:
        backbones: The raw model first, then cured, denoised or pruned ones; one alone will do.
            Any backbone; what cannot be measured of one is None, and a note says why.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images. A folder of
            class folders also gives the labels for nearest neighbours.
        config: Size, number of images and views.
        progress: Told how many forward passes are done, of how many.

    Raises:
        ImageError: There is no image that can be read.
        ModelError: There is no model.
    """
    config = (config or CompareConfig()).effective()
    models = [backbones] if isinstance(backbones, Backbone) else list(backbones)
    if not models:
        raise ModelError("there is nothing to compare; give at least one model.")
    material = gather(models[0], images, config)
    meter = Meter(progress, _passes(models, material, config))
    names = unique([backbone.name for backbone in models])
    studies = [
        study(backbone, name, material, config, meter.advance)
        for backbone, name in zip(models, names, strict=True)
    ]
    average = _average(models[0], material, config, meter)
    pixels = [_first_picture(backbone, material) for backbone in models]
    times = milliseconds(models, pixels, repeats=config.repeats, advance=meter.advance)
    against = Against(
        first=studies[0],
        times=times[0],
        material=material,
        average=average,
        yardstick=measure_yardstick(studies[0], material, average),
        rule=norm_rule([one.diagnosis for one in studies]),
        neighbours=config.neighbours,
    )
    result = _compared(studies, times, against, config.photos)
    meter.finish()
    return result


def _compared(
    studies: Sequence[Study], times: Sequence[Sequence[float]], against: Against, photos: int
) -> Comparison:
    rows = [make_row(one, own, against) for one, own in zip(studies, times, strict=True)]
    material = against.material
    return Comparison(
        rows=tuple(rows),
        rule=against.rule,
        yardstick=against.yardstick,
        size=material.size,
        images=tuple(picture.name for picture in material.pictures),
        skipped=material.skipped,
        labelled=len(material.labelled),
        neighbours=against.neighbours,
        diagnoses=tuple(one.diagnosis for one in studies),
        columns=_columns(studies, rows, against.yardstick),
        exhibits=_exhibits(studies, material, against.average, photos),
    )


def _passes(models: Sequence[Backbone], material: Material, config: CompareConfig) -> int:
    alone = sum(study_passes(backbone, material, config) for backbone in models)
    views = view_count(_grid(models[0], material), config.reference_views) + FEW
    timed = len(models) * (config.repeats + 1)
    shown = min(config.photos, len(material.held))
    return alone + views * len(material.held) + timed + shown


def _average(first: Backbone, material: Material, config: CompareConfig, meter: Meter) -> Reference:
    return reference(
        first,
        material.held,
        size=material.size,
        views=config.reference_views,
        seed=config.seed,
        batch=config.batch,
        cache=None if config.cache is None else Path(config.cache),
        advance=meter.advance,
    )


def _first_picture(backbone: Backbone, material: Material) -> Tensor:
    image = read_image(material.held[0].source)
    return backbone.preprocessing(image, backbone.fitting_size(material.size))[None]


def _exhibits(
    studies: Sequence[Study], material: Material, average: Reference, count: int
) -> tuple[Exhibit, ...]:
    """Colour a few photos of the reference, by model and at last as the reference has them."""
    numbers = spread(range(len(material.held)), count)
    if not numbers:
        return ()
    patches = [(held_patches(one, material), one.finals.grid) for one in studies]
    patches.append((average.many, studies[0].finals.grid))
    maps = [[tokens[i].T.unflatten(1, grid) for i in numbers] for tokens, grid in patches]
    shown = [material.held[i] for i in numbers]
    seen = observe(studies[0].backbone, shown, size=material.size, layers=())
    return tuple(
        Exhibit(one.name, small(one.photo), one.aspect, colours)
        for one, colours in zip(seen, zip(*coloured(maps), strict=True), strict=True)
    )


def _columns(
    studies: Sequence[Study], rows: Sequence[Row], yardstick: Yardstick
) -> tuple[Column, ...]:
    width = studies[0].backbone.width
    columns: list[Column] = []
    for one, row in zip(studies, rows, strict=True):
        note = "" if row.distance is None else f"distance {row.distance:.4f}"
        if columns and row.gap_closed is not None:
            note += f", gap closed {percent(row.gap_closed)}"
        own = "colours of its own" if one.backbone.width != width else ""
        columns.append(Column(row.model, own or note))
    return (*columns, Column("reference", f"{yardstick.views} views of the first model"))


def _grid(backbone: Backbone, material: Material) -> tuple[int, int]:
    height, width = material.size
    return height // backbone.patch[0], width // backbone.patch[1]


def unique(names: Sequence[str]) -> list[str]:
    """Number models that are called the same."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return result
