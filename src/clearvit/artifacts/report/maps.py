"""Where on the grid: example images, positions and the attention of registers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.outliers import relative_norms
from clearvit.artifacts.position import FEWEST_IMAGES
from clearvit.artifacts.report.examples import ExampleImage
from clearvit.report.chart import outline_cells
from clearvit.report.figure import (
    ATTENTION_CMAP,
    FAINT,
    INK,
    NORM_CMAP,
    Limits,
    Panel,
    draw_heatmap,
    draw_panels,
    shared_limits,
    write_text,
)

TIMES = "\N{MULTIPLICATION SIGN}"
WIDTH, GAP, HEAD, NAME, FOOT = 12.5, 0.1, 0.34, 0.26, 0.55  # inches
TALLEST = 3.2  # inches, of a row
REGISTERS = 8  # shown at most


@dataclass(frozen=True)
class _Column:
    """One kind of map, drawn for every example on one scale."""

    title: str
    label: str = ""  # of the color bar
    colors: str = NORM_CMAP
    maps: tuple[NDArray[Any], ...] = ()  # (H, W) each, one per example; none for images
    limits: Limits = (0.0, 1.0)


def draw_examples(diagnosis: Diagnosis) -> Figure | None:
    """Draw photos with flagged cells outlined, their norms, class attention and final tokens."""
    shown = diagnosis.examples
    if not shown:
        return None
    columns = _columns(diagnosis, shown)
    width = (WIDTH - GAP * (len(columns) + 1)) / len(columns)
    heights = [min(width * example.aspect, TALLEST) for example in shown]
    total = HEAD + sum(heights) + len(shown) * NAME + FOOT
    figure = Figure(figsize=(WIDTH, total), facecolor="white")
    FigureCanvasAgg(figure)
    top = total - HEAD
    for row, (example, height) in enumerate(zip(shown, heights, strict=True)):
        mask = _mask_of(diagnosis, example)
        name = f"{PurePosixPath(example.name).name}: {int(mask.sum())} of {mask.size} flagged"
        write_text(figure, GAP, top - 0.05, name, size=9, color=FAINT)
        top -= NAME + height
        for number, column in enumerate(columns):
            left = GAP + number * (width + GAP)
            box = (left / WIDTH, top / total, width / WIDTH, height / total)
            _cell(figure.add_axes(box), column, example, row, mask)
    for number, column in enumerate(columns):
        left = GAP + number * (width + GAP)
        title = {"size": 11, "weight": "bold", "color": INK}
        write_text(figure, left, total - 0.06, column.title, **title)
        if column.maps:
            box = (
                (left + 0.05) / WIDTH,
                (FOOT - 0.17) / total,
                (width - 0.1) / WIDTH,
                0.08 / total,
            )
            _bar(figure, figure.add_axes(box), column)
    return figure


def draw_positions(diagnosis: Diagnosis) -> Figure:
    """Draw which positions of the grid are flagged, their mean norms and what they share."""
    seen, peak = diagnosis.observations, diagnosis.peak
    aspect = diagnosis.size[0] / diagnosis.size[1]
    fraction = 100 * diagnosis.position_map().numpy()
    norms = relative_norms(seen.norms[:, peak]).mean(dim=0).unflatten(0, seen.grid).numpy()
    count = len(seen.names)
    panels = [
        Panel(
            "flagged here",
            values=fraction,
            note=f"block {peak}, {count} image{'s' * (count != 1)}",
            limits=(0.0, max(float(fraction.max()), 1.0)),
            label="% of images",
            aspect=aspect,
        ),
        Panel(
            "mean norm",
            values=norms,
            note=f"block {peak}",
            limits=shared_limits([norms]),
            label=f"{TIMES} median of the image",
            aspect=aspect,
        ),
    ]
    if seen.position_stats.images >= FEWEST_IMAGES:
        ratio = seen.position_stats.ratio.unflatten(0, seen.grid).numpy()
        panels.append(
            Panel(
                "shared by all images",
                values=ratio,
                note="final tokens against their neighbors",
                limits=(0.0, max(float(ratio.max()), 0.5)),
                cmap=ATTENTION_CMAP,
                label="energy, shared / varying",
                aspect=aspect,
            )
        )
    return draw_panels([panels])


def draw_registers(diagnosis: Diagnosis) -> Figure | None:
    """Draw where each register looks in the last block: mean over images, then some photos."""
    attention = diagnosis.observations.register_attention
    if attention is None:
        return None
    names, grid = diagnosis.observations.names, diagnosis.observations.grid
    even = _even(attention)[:, :REGISTERS].unflatten(2, grid)  # (I, R, H, W)
    rows = [
        [
            Panel(
                f"register {i + 1}",
                values=values,
                note=f"mean of {len(names)} image{'s' * (len(names) != 1)}",
                limits=_from_zero(values),
                cmap=ATTENTION_CMAP,
                label=f"{TIMES} an even share",
                aspect=diagnosis.size[0] / diagnosis.size[1],
            )
            for i, values in enumerate(even.mean(dim=0).numpy())
        ]
    ]
    shown = diagnosis.examples
    for example in shown[:2]:
        maps = even[names.index(example.name)].numpy()
        name = PurePosixPath(example.name).name[:24]
        rows.append([_register_panel(example, v, "" if i else name) for i, v in enumerate(maps)])
    return draw_panels(rows)


def _register_panel(example: ExampleImage, values: NDArray[Any], title: str) -> Panel:
    return Panel(
        title,
        example.photo,
        values,
        limits=_from_zero(values),
        cmap=ATTENTION_CMAP,
        aspect=example.aspect,
    )


def _columns(diagnosis: Diagnosis, shown: tuple[ExampleImage, ...]) -> list[_Column]:
    seen, peak, last = diagnosis.observations, diagnosis.peak, len(diagnosis.blocks) - 1
    rows = [seen.names.index(example.name) for example in shown]
    columns = [_Column("photo, flagged cells")]
    blocks = sorted({peak, last})
    norms = {
        b: relative_norms(seen.norms[:, b])[rows].unflatten(1, seen.grid).numpy() for b in blocks
    }
    limits = shared_limits(list(norms.values()), low=0.0)
    for block, maps in norms.items():
        word = "last block" if block == last else f"block {block}"
        columns.append(_Column(f"norms, {word}", f"{TIMES} median", NORM_CMAP, tuple(maps), limits))
    if seen.attention is not None:
        maps = _even(seen.attention[rows, last]).unflatten(1, seen.grid).numpy()
        top = _from_zero(maps)
        columns.append(
            _Column(
                "class attention, last", f"{TIMES} an even share", ATTENTION_CMAP, tuple(maps), top
            )
        )
    return [*columns, _Column("final tokens, PCA")]


def _cell(axes: Axes, column: _Column, example: ExampleImage, row: int, mask: NDArray[Any]) -> None:
    axes.set_axis_off()
    if column.maps:
        draw_heatmap(axes, column.maps[row], limits=column.limits, cmap=column.colors)
        return
    is_photo = column.title.startswith("photo")
    axes.imshow(
        example.photo if is_photo else example.colors,
        interpolation="antialiased" if is_photo else "nearest",
        aspect="auto",
        extent=(0, 1, 1, 0),
    )
    if is_photo:
        outline_cells(axes, mask)


def _bar(figure: Figure, axes: Axes, column: _Column) -> None:
    low, high = column.limits
    above = any(bool((values > high * (1 + 1e-6)).any()) for values in column.maps)
    bar = figure.colorbar(
        ScalarMappable(Normalize(low, high), cmap=column.colors),
        cax=axes,
        orientation="horizontal",
        extend="max" if above else "neither",
        ticks=MaxNLocator(4),
    )
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=8.5, length=2, width=0.6, colors=FAINT, pad=1.5)
    axes.set_xlabel(column.label, size=8.5, color=FAINT, labelpad=1)


def _mask_of(diagnosis: Diagnosis, example: ExampleImage) -> NDArray[np.bool_]:
    row = diagnosis.observations.names.index(example.name)
    mask: NDArray[np.bool_] = (
        diagnosis.outlier_mask()[row].unflatten(0, diagnosis.observations.grid).numpy()
    )
    return mask


def _even(attention: Tensor) -> Tensor:
    """Attention to patches as multiples of an even share over them, (..., N)."""
    return attention / attention.mean(dim=-1, keepdim=True).clamp(min=1e-12)


def _from_zero(values: NDArray[Any]) -> Limits:
    low, high = shared_limits([values], low=0.0, top=0.995)
    return low, max(high, 2.0)  # attention that is nearly even should look so
