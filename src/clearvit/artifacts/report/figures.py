"""Charts of token norms: by block, as histograms and as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray
from torch import Tensor

from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.neighbors import Contrast
from clearvit.artifacts.norms import BlockReport
from clearvit.artifacts.outliers import SIDES, Outliers, Side, relative_norms
from clearvit.report.chart import BLUE, GREEN, ORANGE, add_note, new_chart, style_axes
from clearvit.report.figure import FAINT, INK

TIMES = "\N{MULTIPLICATION SIGN}"
STEPS = 24  # bins per octave
FURTHEST = 8.0  # octaves from the median that a chart shows at most; what lies beyond is on its rim
TICKS = (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 1, 1.4, 2, 3, 4, 8, 16, 32, 64, 128, 256)
SIDE_COLORS = {"high": ORANGE, "low": GREEN}


def draw_norms(diagnosis: Diagnosis) -> Figure:
    """Draw how the norms of all patch tokens spread, block by block.

    Color is the fraction of tokens on a logarithmic scale, so that one token in a thousand shows.
    """
    depth = len(diagnosis.blocks)
    fractions, edges = _histograms(relative_norms(diagnosis.observations.norms))
    figure, (axes,) = new_chart(12.5, 4.8)
    columns = np.arange(depth + 1) - 0.5
    filled = np.ma.masked_equal(fractions.T, 0)
    lowest = 1 / (diagnosis.observations.norms[:, 0].numel())
    mesh = axes.pcolormesh(
        columns,
        2.0**edges,
        filled,
        cmap="viridis",
        norm=LogNorm(lowest, max(fractions.max(), 0.01)),
    )
    bar = figure.colorbar(mesh, ax=axes, pad=0.015, fraction=0.04)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, colors=FAINT)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g} %"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_label("fraction of patch tokens per bin", size=9.5, color=FAINT)
    style_axes(
        axes,
        f"{_short(diagnosis.model)}: token norms before the final norm",
        x="block, from 0",
        grid=False,
    )
    _ratio_axis(axes, edges, vertical=True)
    axes.xaxis.set_major_locator(MaxNLocator(min(depth, 24), integer=True))
    _cutoffs(axes, diagnosis.blocks)
    _registers(axes, diagnosis.blocks, *(2.0 ** edges[[0, -1]]))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", fontsize=9, frameon=False, labelcolor=FAINT, ncols=3)
    return figure


def draw_readings(diagnosis: Diagnosis) -> Figure:
    """Draw the same norms as read at the peak block, at the last one, after the final norm."""
    last = len(diagnosis.blocks) - 1
    relative = relative_norms(diagnosis.observations.norms)
    normed = diagnosis.observations.normed
    shown: list[tuple[str, Tensor, Sequence[Outliers | None]]] = []
    for index in sorted({diagnosis.peak, last}):
        report = diagnosis.blocks[index]
        name = "output of the last block" if index == last else f"block {index} of 0..{last}"
        shown.append((name, relative[:, index], (report.high, report.low)))
    shown.append(("after the final norm", relative_norms(normed), (diagnosis.after_norm,)))
    _, edges = _histograms(torch.stack([values for _, values, _ in shown], dim=1))
    figure, axes = new_chart(12.5, 3.6, len(shown))
    for panel, (name, values, groups) in zip(axes, shown, strict=True):
        _histogram(panel, values, edges, groups)
        style_axes(panel, name, x=f"norm, {TIMES} median of the image", y="patch tokens")
        _ratio_axis(panel, edges, vertical=False)
    for panel in axes[1:]:
        panel.sharey(axes[0])
        panel.set_ylabel("")
    return figure


def draw_by_block(diagnosis: Diagnosis) -> Figure:
    """Draw the fraction of flagged tokens, and of the class token's attention on them, by block."""
    blocks = diagnosis.blocks
    attended = [(b.index, 100 * b.attention) for b in blocks if b.attention is not None]
    figure, axes = new_chart(12.5 if attended else 7.5, 3.2, 2 if attended else 1)
    for side in SIDES:
        _fraction_curve(axes[0], blocks, side)
    style_axes(axes[0], "patch tokens flagged", x="block, from 0", y="% of tokens")
    axes[0].legend(fontsize=9, frameon=False, labelcolor=FAINT)
    if attended:
        numbers, fractions = zip(*attended, strict=True)
        flagged = [
            100 * sum(t.fraction for s in SIDES if (t := blocks[n].outliers(s))) for n in numbers
        ]
        axes[1].plot(
            numbers, fractions, "o-", color=BLUE, label="class attention on flagged tokens"
        )
        axes[1].plot(numbers, flagged, "--", color=FAINT, label="their fraction of the tokens")
        axes[1].legend(fontsize=9, frameon=False, labelcolor=FAINT)
        style_axes(
            axes[1],
            "attention of the class token",
            x="block, from 0",
            y="% of attention to patches",
        )
    for panel in axes:
        panel.set_xlim(-0.5, len(blocks) - 0.5)
        panel.set_ylim(0, 1.15 * max(panel.dataLim.y1, 0.1))
        panel.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    return figure


def draw_redundancy(contrast: Contrast) -> Figure:
    """Draw the densities of neighbor similarity at normal and at flagged positions."""
    figure, (axes,) = new_chart(7.5, 3.2)
    edges = np.array(contrast.edges)
    for name, density, color in (
        ("normal positions", contrast.normal_density, BLUE),
        ("flagged positions", contrast.outlier_density, ORANGE),
    ):
        if any(density):
            axes.stairs(density, edges, fill=True, alpha=0.25, color=color)
            axes.stairs(density, edges, color=color, linewidth=1.4, label=name)
    title = "patch embedding: cosine to the four neighbors"
    known = f" (AUROC {contrast.auroc:.2f})" if math.isfinite(contrast.auroc) else ""
    style_axes(axes, title + known, x="mean cosine", y="density")
    axes.legend(loc="upper left", fontsize=9, frameon=False, labelcolor=FAINT)
    return figure


def _fraction_curve(axes: Axes, blocks: Sequence[BlockReport], side: Side) -> None:
    """Draw one side, if it is flagged anywhere or is the first of the two."""
    groups = [block.outliers(side) for block in blocks]
    if not any(groups) and (side == "low" or any(block.low for block in blocks)):
        return
    numbers = [block.index for block in blocks]
    fractions = np.array([100 * group.fraction if group else 0.0 for group in groups])
    ends = np.array(
        [[100 * end for end in group.interval] if group else [0.0, 0.0] for group in groups]
    )
    errors = np.abs(ends.T - fractions)
    word = "higher" if side == "high" else "lower"
    axes.errorbar(
        numbers,
        fractions,
        yerr=errors,
        fmt="o-",
        capsize=3,
        color=SIDE_COLORS[side],
        label=f"{word} norm than the rest, 95 % CI",
    )


def _histogram(
    axes: Axes, values: Tensor, edges: NDArray[Any], groups: Sequence[Outliers | None]
) -> None:
    """Count tokens in bins on a logarithmic axis; flagged ones in their own color."""
    found = [group for group in groups if group is not None]
    mask = torch.zeros_like(values, dtype=torch.bool)
    for group in found:
        mask |= values >= group.cutoff if group.side == "high" else values <= group.cutoff
    logs = values.clamp(min=1e-12).log2().clamp(float(edges[0]), float(edges[-1]))
    for part, color in ((logs[~mask], BLUE), (logs[mask], ORANGE)):
        if part.numel():
            counts, _ = np.histogram(part.numpy(), edges)
            axes.stairs(counts, 2.0**edges, fill=True, color=color)
    for group in found:
        axes.axvline(group.cutoff, color=INK, linewidth=1, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    lines = [f"largest {float(values.max()):.2f} {TIMES}"]
    lines += [f"cutoff {t.cutoff:.2f} {TIMES}: {100 * t.fraction:.2f} % flagged" for t in found]
    add_note(axes, "\n".join(lines if found else [*lines, "no second mode"]))


def _cutoffs(axes: Axes, blocks: Sequence[BlockReport]) -> None:
    """Mark each cutoff with a line, and the fraction of tokens beyond it."""
    crowded = len(blocks) > 24
    labelled = False
    for block in blocks:
        for side in SIDES:
            group = block.outliers(side)
            if group is None:
                continue
            x = block.index
            axes.hlines(
                group.cutoff,
                x - 0.5,
                x + 0.5,
                color=ORANGE,
                linewidth=2.2,
                label="" if labelled else "cutoff, and % of tokens beyond",
            )
            labelled = True
            if not crowded:
                _percentage(axes, x, block, group)


def _percentage(axes: Axes, x: int, block: BlockReport, group: Outliers) -> None:
    far, gap = (block.largest, 4) if group.side == "high" else (block.smallest, -4)
    low, high = axes.get_ylim()
    axes.annotate(
        f"{100 * group.fraction:.2g}",
        (x, min(max(far, low), high)),
        xytext=(0, gap),
        textcoords="offset points",
        ha="center",
        va="bottom" if gap > 0 else "top",
        size=9,
        color=ORANGE,
        weight="bold",
    )


def _registers(axes: Axes, blocks: Sequence[BlockReport], low: float, high: float) -> None:
    """Mark the mean norm of each register; those beyond the chart stand on its rim."""
    points = [(b.index, norm) for b in blocks for norm in b.register_norms]
    kinds = {
        ("D", "registers"): [(x, norm) for x, norm in points if low <= norm <= high],
        ("^", "registers, further up"): [(x, high) for x, norm in points if norm > high],
        ("v", "registers, further down"): [(x, low) for x, norm in points if norm < low],
    }
    for (marker, label), kept in kinds.items():
        if kept:
            axes.plot(
                *zip(*kept, strict=True),
                marker,
                color="white",
                markeredgecolor="#b0006e",
                markersize=4.5,
                label=label,
                clip_on=False,
            )


def _histograms(relative: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Count (I, L, N) in bins of log2 that hold everything: fractions (L, bins) and edges.

    The stored histograms end at four times the median; outliers of large models lie further out.
    """
    logs = relative.clamp(min=1e-12).log2().clamp(-FURTHEST, FURTHEST).numpy()
    low = math.floor(min(float(logs.min()), -0.5) * STEPS - 0.5)
    high = math.ceil(max(float(logs.max()), 0.75) * STEPS + 0.5)
    edges = np.arange(low, high + 1) / STEPS
    counts = [np.histogram(logs[:, block], edges)[0] for block in range(logs.shape[1])]
    return np.stack(counts) / logs[:, 0].size, edges


def _ratio_axis(axes: Axes, edges: NDArray[Any], *, vertical: bool) -> None:
    """Put a logarithmic axis of multiples of the median."""
    limits = (float(2 ** edges[0]), float(2 ** edges[-1]))
    axis = axes.yaxis if vertical else axes.xaxis
    if vertical:
        axes.set_yscale("log", base=2)
        axes.set_ylim(limits[0], limits[1] * 1.12)
        axes.set_ylabel(f"norm, {TIMES} median of the image", size=9.5, color=FAINT)
    else:
        axes.set_xscale("log", base=2)
        axes.set_xlim(limits)
    wide = edges[-1] - edges[0] > 5
    ticks = [t for t in TICKS if limits[0] <= t <= limits[1] and not (wide and t in (0.7, 1.4, 3))]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))


def _short(name: str, length: int = 60) -> str:
    return name if len(name) <= length else f"…{name[-length + 1 :]}"
