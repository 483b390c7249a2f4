"""Where on the grid: the images that show it best, the places, and where registers look."""

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

from clearvit.diagnose.diagnosis import Diagnosis
from clearvit.diagnose.gallery import Exhibit
from clearvit.diagnose.positional import FEWEST_IMAGES
from clearvit.report.chart import outline
from clearvit.report.figure import (
    FAINT,
    INK,
    MAGNITUDE,
    SHARE,
    Limits,
    Panel,
    draw_panels,
    heat,
    shared_limits,
)

TIMES = "\N{MULTIPLICATION SIGN}"
WIDTH, GAP, HEAD, NAME, FOOT = 12.5, 0.1, 0.34, 0.26, 0.55  # inches
TALLEST = 3.2  # inches, of a row
REGISTERS = 8  # shown at most


@dataclass(frozen=True)
class _Column:
    """One kind of map, drawn for every exhibit on one scale."""

    title: str
    label: str = ""  # of the colour bar
    colours: str = MAGNITUDE
    maps: tuple[NDArray[Any], ...] = ()  # (H, W) each, one per exhibit; none for pictures
    limits: Limits = (0.0, 1.0)


def exhibits(diagnosis: Diagnosis) -> Figure | None:
    """Draw photos with flagged cells outlined, their norms, class attention and final tokens."""
    shown = diagnosis.gallery.exhibits if diagnosis.gallery is not None else ()
    if not shown:
        return None
    columns = _columns(diagnosis, shown)
    width = (WIDTH - GAP * (len(columns) + 1)) / len(columns)
    heights = [min(width * exhibit.aspect, TALLEST) for exhibit in shown]
    total = HEAD + sum(heights) + len(shown) * NAME + FOOT
    figure = Figure(figsize=(WIDTH, total), facecolor="white")
    FigureCanvasAgg(figure)
    top = total - HEAD
    for row, (exhibit, height) in enumerate(zip(shown, heights, strict=True)):
        flags = _flags_of(diagnosis, exhibit)
        name = f"{PurePosixPath(exhibit.name).name}: {int(flags.sum())} of {flags.size} flagged"
        _write(figure, GAP, top - 0.05, name, colour=FAINT)
        top -= NAME + height
        for place, column in enumerate(columns):
            left = GAP + place * (width + GAP)
            box = (left / WIDTH, top / total, width / WIDTH, height / total)
            _cell(figure.add_axes(box), column, exhibit, row, flags)
    for place, column in enumerate(columns):
        left = GAP + place * (width + GAP)
        _write(figure, left, total - 0.06, column.title, size=11, bold=True)
        if column.maps:
            box = (
                (left + 0.05) / WIDTH,
                (FOOT - 0.17) / total,
                (width - 0.1) / WIDTH,
                0.08 / total,
            )
            _bar(figure, figure.add_axes(box), column)
    return figure


def places(diagnosis: Diagnosis) -> Figure:
    """Draw which places of the grid are flagged, how long their tokens are and what they share."""
    seen, peak = diagnosis.observations, diagnosis.peak
    aspect = diagnosis.size[0] / diagnosis.size[1]
    share = 100 * diagnosis.place_map().numpy()
    norms = _relative(diagnosis, peak).mean(dim=0).unflatten(0, seen.grid).numpy()
    count = len(seen.names)
    panels = [
        Panel(
            "flagged here",
            values=share,
            note=f"block {peak + 1}, {count} image{'s' * (count != 1)}",
            limits=(0.0, max(float(share.max()), 1.0)),
            label="% of images",
            aspect=aspect,
        ),
        Panel(
            "mean norm",
            values=norms,
            note=f"block {peak + 1}",
            limits=shared_limits([norms]),
            label=f"{TIMES} median of the image",
            aspect=aspect,
        ),
    ]
    if seen.placed.images >= FEWEST_IMAGES:
        ratio = seen.placed.ratio.unflatten(0, seen.grid).numpy()
        panels.append(
            Panel(
                "shared by all images",
                values=ratio,
                note="final tokens against their neighbours",
                limits=(0.0, max(float(ratio.max()), 0.5)),
                colours=SHARE,
                label="energy, shared / varying",
                aspect=aspect,
            )
        )
    return draw_panels([panels])


def registers(diagnosis: Diagnosis) -> Figure | None:
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
                colours=SHARE,
                label=f"{TIMES} an even share",
                aspect=diagnosis.size[0] / diagnosis.size[1],
            )
            for i, values in enumerate(even.mean(dim=0).numpy())
        ]
    ]
    shown = diagnosis.gallery.exhibits if diagnosis.gallery is not None else ()
    for exhibit in shown[:2]:
        maps = even[names.index(exhibit.name)].numpy()
        name = PurePosixPath(exhibit.name).name[:24]
        rows.append([_register_panel(exhibit, v, "" if i else name) for i, v in enumerate(maps)])
    return draw_panels(rows)


def _register_panel(exhibit: Exhibit, values: NDArray[Any], title: str) -> Panel:
    return Panel(
        title,
        exhibit.photo,
        values,
        limits=_from_zero(values),
        colours=SHARE,
        aspect=exhibit.aspect,
    )


def _columns(diagnosis: Diagnosis, shown: tuple[Exhibit, ...]) -> list[_Column]:
    seen, peak, last = diagnosis.observations, diagnosis.peak, len(diagnosis.blocks) - 1
    rows = [seen.names.index(exhibit.name) for exhibit in shown]
    columns = [_Column("photo, flagged cells")]
    blocks = sorted({peak, last})
    norms = {b: _relative(diagnosis, b)[rows].unflatten(1, seen.grid).numpy() for b in blocks}
    limits = shared_limits(list(norms.values()), low=0.0)
    for block, maps in norms.items():
        word = "last block" if block == last else f"block {block + 1}"
        columns.append(_Column(f"norms, {word}", f"{TIMES} median", MAGNITUDE, tuple(maps), limits))
    if seen.attention is not None:
        maps = _even(seen.attention[rows, last]).unflatten(1, seen.grid).numpy()
        top = _from_zero(maps)
        columns.append(
            _Column("class attention, last", f"{TIMES} an even share", SHARE, tuple(maps), top)
        )
    return [*columns, _Column("final tokens, PCA")]


def _cell(axes: Axes, column: _Column, exhibit: Exhibit, row: int, flags: NDArray[Any]) -> None:
    axes.set_axis_off()
    if column.maps:
        heat(axes, column.maps[row], limits=column.limits, colours=column.colours)
        return
    is_photo = column.title.startswith("photo")
    axes.imshow(
        exhibit.photo if is_photo else exhibit.colours,
        interpolation="antialiased" if is_photo else "nearest",
        aspect="auto",
        extent=(0, 1, 1, 0),
    )
    if is_photo:
        outline(axes, flags)


def _bar(figure: Figure, axes: Axes, column: _Column) -> None:
    low, high = column.limits
    above = any(bool((values > high * (1 + 1e-6)).any()) for values in column.maps)
    bar = figure.colorbar(
        ScalarMappable(Normalize(low, high), cmap=column.colours),
        cax=axes,
        orientation="horizontal",
        extend="max" if above else "neither",
        ticks=MaxNLocator(4),
    )
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=8.5, length=2, width=0.6, colors=FAINT, pad=1.5)
    axes.set_xlabel(column.label, size=8.5, color=FAINT, labelpad=1)


def _write(
    figure: Figure,
    x: float,
    y: float,
    text: str,
    *,
    size: float = 9,
    bold: bool = False,
    colour: str = INK,
) -> None:
    """Write with the upper left corner at (x, y), in inches from the bottom left."""
    height = figure.get_figheight()
    weight = "bold" if bold else "normal"
    figure.text(
        x / WIDTH,
        y / height,
        text,
        size=size,
        weight=weight,
        color=colour,
        va="top",
        parse_math=False,
    )


def _flags_of(diagnosis: Diagnosis, exhibit: Exhibit) -> NDArray[np.bool_]:
    row = diagnosis.observations.names.index(exhibit.name)
    flags: NDArray[np.bool_] = (
        diagnosis.flags()[row].unflatten(0, diagnosis.observations.grid).numpy()
    )
    return flags


def _relative(diagnosis: Diagnosis, block: int) -> Tensor:
    """Norms of one block as multiples of the median of their image, (I, N)."""
    norms = diagnosis.observations.norms[:, block]
    return norms / norms.median(dim=1, keepdim=True).values.clamp(min=1e-12)


def _even(attention: Tensor) -> Tensor:
    """Attention to patches as multiples of an even share over them, (..., N)."""
    return attention / attention.mean(dim=-1, keepdim=True).clamp(min=1e-12)


def _from_zero(values: NDArray[Any]) -> Limits:
    low, high = shared_limits([values], low=0.0, top=0.995)
    return low, max(high, 2.0)  # attention that is nearly even should look so
