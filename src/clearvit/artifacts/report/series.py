"""Several models, sizes or checkpoints side by side, in the order given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clearvit.artifacts.diagnosis import Diagnosis
from clearvit.artifacts.norms import QUANTILES, BlockReport
from clearvit.artifacts.outliers import SIDES
from clearvit.artifacts.report.figures import TIMES
from clearvit.artifacts.verdict import Verdict
from clearvit.report.chart import BLUE, MARKERS, ORANGE, new_chart, series_colors, style_axes
from clearvit.report.figure import FAINT

RARE = QUANTILES.index(0.999)
SERIES = 3  # models from which on the order given is drawn as a series
HEADER = (
    "model",
    "verdict",
    "onset",
    "peak",
    "tokens concerned, 95 % interval",
    "cutoff",
    "largest at peak",
    "largest at last block",
    "class attention",
    "shifted",
    "register norms",
)


@dataclass(frozen=True)
class Comparison:
    """One model in the table.

    Attributes:
        model: Its name.
        verdict: The gravest finding.
        onset: First block that shows it, from 0.
        peak: Block where it is strongest, else the last, from 0.
        depth: Number of blocks.
        fraction: Fraction of tokens flagged there, or of positions with a shared component; 0 if
            features merely change with a shift, which singles out no token.
        interval: 95 % of the fraction; None without a cutoff.
        cutoff: Times the median norm of the image.
        largest_peak: Largest norm at the peak, times the median of its image.
        largest_last: The same at the last block.
        attention: Fraction of the class token's attention on flagged tokens at the peak.
        shifted: Change of features when the image is shifted, as a fraction of the distance
            between different contents.
        register_norms: Mean norm of each register at the peak, times the median of the patches.
    """

    model: str
    verdict: Verdict
    onset: int | None
    peak: int
    depth: int
    fraction: float
    interval: tuple[float, float] | None
    cutoff: float | None
    largest_peak: float
    largest_last: float
    attention: float | None
    shifted: float | None
    register_norms: tuple[float, ...]

    def cells(self) -> tuple[str | None, ...]:
        """Give the row as text, one cell per name in HEADER."""
        ends = [f"{100 * end:.2f}" for end in self.interval or ()]
        return (
            self.model,
            self.verdict,
            None if self.onset is None else f"{self.onset} of 0..{self.depth - 1}",
            None if self.onset is None else f"{self.peak} of 0..{self.depth - 1}",
            f"{100 * self.fraction:.2f} %" + (f" ({' to '.join(ends)})" if ends else ""),
            _number(self.cutoff),
            _number(self.largest_peak),
            _number(self.largest_last),
            None if self.attention is None else f"{100 * self.attention:.1f} %",
            None if self.shifted is None else f"{100 * self.shifted:.0f} %",
            ", ".join(f"{norm:.1f}" for norm in self.register_norms) or None,
        )


def compare_table(diagnoses: Sequence[Diagnosis]) -> list[Comparison]:
    """Summarise each model in a row, in the order given."""
    return [_row(diagnosis) for diagnosis in diagnoses]


def compare_figure(diagnoses: Sequence[Diagnosis]) -> Figure:
    """Draw norms and flags along the blocks of each model, and along the models."""
    series = len(diagnoses) >= SERIES
    figure, axes = new_chart(12.5, 9.6 if series else 6.4, 2, rows=3 if series else 2)
    depths = {len(diagnosis.blocks) for diagnosis in diagnoses}
    curves: list[tuple[str, str, Callable[[BlockReport], float]]] = [
        ("median norm", "norm", lambda block: block.median),
        ("99.9 % of the norms lie below", f"{TIMES} median", lambda block: block.quantiles[RARE]),
        ("largest norm", f"{TIMES} median", lambda block: block.largest),
        ("patch tokens flagged", "% of tokens", _flagged_percent),
    ]
    for panel, (title, unit, value) in zip(axes, curves, strict=False):
        _lines(panel, diagnoses, value, relative=len(depths) > 1)
        style_axes(
            panel,
            title,
            x="block, from 0" if len(depths) == 1 else "depth, % of the blocks",
            y=unit,
        )
        if unit == "% of tokens":
            panel.set_ylim(bottom=0)
        else:
            _plain_log(panel)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(3, len(diagnoses)),
        fontsize=9,
        frameon=False,
        labelcolor=FAINT,
    )
    if series:
        _along(axes[4], axes[5], compare_table(diagnoses))
    return figure


def _row(diagnosis: Diagnosis) -> Comparison:
    block, moved = diagnosis.blocks[diagnosis.peak], diagnosis.equivariance
    finding = diagnosis.findings[0] if diagnosis.findings else None
    return Comparison(
        model=diagnosis.model,
        verdict=diagnosis.verdict,
        onset=diagnosis.onset,
        peak=diagnosis.peak,
        depth=len(diagnosis.blocks),
        fraction=0.0 if diagnosis.verdict == "non-equivariant" else diagnosis.fraction,
        interval=None if finding is None or finding.cutoff is None else finding.interval,
        cutoff=diagnosis.cutoff,
        largest_peak=block.largest,
        largest_last=diagnosis.blocks[-1].largest,
        attention=block.attention,
        shifted=None if moved is None else moved.ratio,
        register_norms=block.register_norms,
    )


def _lines(
    axes: Axes,
    diagnoses: Sequence[Diagnosis],
    value: Callable[[BlockReport], float],
    *,
    relative: bool,
) -> None:
    """Draw one line per model; models of different depth are drawn over the fraction of blocks."""
    for number, (diagnosis, color) in enumerate(
        zip(diagnoses, series_colors(len(diagnoses)), strict=True)
    ):
        depth = len(diagnosis.blocks)
        x = [100 * (b.index + 1) / depth if relative else b.index for b in diagnosis.blocks]
        axes.plot(
            x,
            [value(block) for block in diagnosis.blocks],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.5,
            color=color,
            label=shorten_name(diagnosis.model),
        )
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))


def _along(left: Axes, right: Axes, rows: Sequence[Comparison]) -> None:
    """Draw the peak of each model over the order in which they were given."""
    numbers = range(1, len(rows) + 1)
    spans = [row.interval or (row.fraction, row.fraction) for row in rows]
    errors = [
        [100 * abs(row.fraction - s[i]) for row, s in zip(rows, spans, strict=True)] for i in (0, 1)
    ]
    fractions = [100 * row.fraction for row in rows]
    left.errorbar(numbers, fractions, yerr=errors, fmt="o-", capsize=3, color=ORANGE)
    left.set_ylim(bottom=0)
    style_axes(left, "along the series: tokens concerned", y="% of tokens")
    right.plot(numbers, [row.largest_peak for row in rows], "o-", color=BLUE, label="at the peak")
    right.plot(numbers, [row.largest_last for row in rows], "s--", color=ORANGE, label="last block")
    right.legend(fontsize=9, frameon=False, labelcolor=FAINT)
    style_axes(right, "along the series: largest norm", y=f"{TIMES} median")
    for axes in (left, right):
        axes.set_xticks(
            list(numbers), [shorten_name(row.model, 18) for row in rows], rotation=20, ha="right"
        )


def _plain_log(axes: Axes) -> None:
    """Use a logarithmic axis whose numbers read as numbers."""
    axes.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:.3g}")
    axes.yaxis.set_major_formatter(plain)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(plain if high / low < 8 else FuncFormatter(lambda *_: ""))
    axes.tick_params(axis="y", which="minor", labelsize=8, colors=FAINT)


def _flagged_percent(block: BlockReport) -> float:
    return 100 * sum(group.fraction for side in SIDES if (group := block.outliers(side)))


def shorten_name(name: str, length: int = 44) -> str:
    """Keep the end of a long name, where checkpoints differ."""
    return name if len(name) <= length else f"…{name[-length + 1 :]}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
