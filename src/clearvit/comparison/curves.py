"""How clean tokens become with more views, or with more registers: curves with their fits.

The curves of "Vision Transformers with Self-Distilled Registers" (Chen et al., NeurIPS 2025), for
any model: quality against the number of views, and of a cure against the number of registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clearvit.backbones.backbone import Backbone
from clearvit.comparison.config import CurveConfig, CurveOver
from clearvit.cures.cure import cure
from clearvit.errors import ModelError, TrainingError
from clearvit.files import replace_json
from clearvit.images import find_images, spread_evenly
from clearvit.options import with_options
from clearvit.progress import Meter, Progress
from clearvit.report.chart import COLORS, MARKERS, new_chart, style_axes
from clearvit.report.figure import FAINT, save_figure
from clearvit.report.text_table import render_table
from clearvit.stats import bootstrap
from clearvit.views.config import DenoiseConfig, Sampler
from clearvit.views.denoise import denoise

REFERENCE = 64  # views of the reference; those that are judged have another seed
SAMPLERS: dict[Sampler, str] = {"whole": "whole-patch views", "lattice": "sub-patch views"}


@dataclass(frozen=True)
class Series:
    """One line of a curve.

    Attributes:
        name: What it shows.
        counts: Numbers of views or registers.
        quality: Mean cosine to clean tokens, one per count.
        low: Lower ends of the 95 % intervals over images; empty if unknown.
        high: Upper ends.
        parameters: Of the fit, by name; empty where nothing could be fitted.
    """

    name: str
    counts: tuple[int, ...]
    quality: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    parameters: dict[str, float] = field(default_factory=dict)

    def fit_at(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluate the fitted formula."""
        p = self.parameters
        if "c" in p:
            return np.asarray(p["Q_inf"] - p["c"] / counts)
        return np.asarray(p["alpha"] - p["beta"] * np.exp(-p["gamma"] * counts))


@dataclass(frozen=True)
class Curve:
    """Quality of tokens against a number, with the fit of the paper."""

    model: str
    over: CurveOver
    series: tuple[Series, ...]
    images: int

    @property
    def formula(self) -> str:
        """The formula that was fitted."""
        if self.over == "views":
            return "Q(n) = Q_inf - c / n"
        return "Q(m) = alpha - beta exp(-gamma m)"

    def __str__(self) -> str:
        """Give the table and the fits as text."""
        header = (self.over, *(one.name for one in self.series))
        counts = self.series[0].counts
        rows = [
            (str(count), *(f"{one.quality[i]:.4f}" for one in self.series))
            for i, count in enumerate(counts)
        ]
        fits = [f"{one.name}: {_show(one.parameters) or 'no fit'}" for one in self.series]
        return "\n".join([render_table(header, rows), f"fit of {self.formula}:", *fits])

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON holds them."""
        return {
            "model": self.model,
            "over": self.over,
            "formula": self.formula,
            "images": self.images,
            "series": [vars(one) for one in self.series],
        }

    def save(self, out: str | Path) -> Path:
        """Write curve-OVER.json and curve-OVER.png into a directory; gives the figure."""
        base = Path(out) / f"curve-{self.over}"
        replace_json(base.with_suffix(".json"), self.to_json())
        save_figure(draw_curve(self), base.with_suffix(".png"))
        return base.with_suffix(".png")


@with_options(CurveConfig)
def curve(
    backbone: Backbone,
    images: Any,
    *,
    out: str | Path,
    config: CurveConfig,
    progress: Progress | None = None,
) -> Curve:
    """Measure how clean tokens become with more views, or with more registers.

    Quality is the mean cosine of patch tokens to those of many views: for views, to 64 other views
    of the same kind; for registers, of one forward pass of a cured model to its teacher, on
    held-out images.

    Args:
        backbone: Any backbone for views; a ViT for registers.
        images: A folder, a file, a glob pattern, or a list of paths and PIL images.
        out: Directory of curve-OVER.json and curve-OVER.png; cures are kept there and resumed.
        config: All options at once, instead of keywords.
        progress: Called with how many points of the curve are done.
    """
    counts = sorted(set(config.counts or DEFAULTS[config.over]))
    if config.over == "views" and counts[0] < 1:
        raise ModelError("a curve over views needs at least one view in every count.")
    measure = _measure_views if config.over == "views" else _measure_registers
    series, used = measure(backbone, images, Path(out), counts, config, progress)
    found = Curve(backbone.name, config.over, tuple(series), used)
    found.save(out)
    return found


DEFAULTS: dict[CurveOver, tuple[int, ...]] = {
    "views": (1, 2, 4, 8, 16, 32),
    "registers": (0, 1, 2, 4, 8, 16),
}


def fit_inverse(counts: Sequence[int], quality: Sequence[float]) -> dict[str, float]:
    """Fit Q(n) = Q_inf - c / n by least squares; empty for fewer than two points."""
    if len(counts) < 2:
        return {}
    inverse = 1 / np.asarray(counts, dtype=float)
    slope, end = np.polyfit(inverse, np.asarray(quality), 1)
    return {"Q_inf": float(end), "c": float(-slope)}


def fit_saturation(counts: Sequence[int], quality: Sequence[float]) -> dict[str, float]:
    """Fit Q(m) = alpha - beta exp(-gamma m) by least squares; empty for fewer than four points.

    For every gamma of a fine grid, 0.01 to 10, alpha and beta are a linear problem.
    """
    if len(counts) < 4:
        return {}
    values, target = np.asarray(counts, dtype=float), np.asarray(quality)
    best: tuple[float, dict[str, float]] | None = None
    for gamma in np.geomspace(0.01, 10, 400):
        design = np.stack([np.ones_like(values), -np.exp(-gamma * values)], axis=1)
        (alpha, beta), *_ = np.linalg.lstsq(design, target, rcond=None)
        error = float(np.square(design @ (alpha, beta) - target).sum())
        if best is None or error < best[0]:
            best = (error, {"alpha": float(alpha), "beta": float(beta), "gamma": float(gamma)})
    return best[1] if best else {}


def draw_curve(found: Curve) -> Figure:
    """Draw the points with their intervals, and the fits."""
    figure, (axes,) = new_chart(7.5, 4.2)
    for number, one in enumerate(found.series):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        axes.plot(one.counts, one.quality, marker, color=color, label=one.name)
        if one.low:
            axes.vlines(one.counts, one.low, one.high, color=color, linewidth=1)
        if one.parameters:
            xs = np.linspace(one.counts[0], one.counts[-1], 200)
            name = f"fit: {_show(one.parameters)}"
            axes.plot(xs, one.fit_at(xs), color=color, linewidth=1.3, alpha=0.6, label=name)
    style_axes(axes, f"{found.model[-40:]}: {found.formula}", x=found.over, y="cosine to clean")
    axes.legend(fontsize=9, frameon=False, labelcolor=FAINT)
    return figure


def _measure_views(
    backbone: Backbone,
    images: Any,
    out: Path,
    counts: Sequence[int],
    config: CurveConfig,
    progress: Progress | None,
) -> tuple[list[Series], int]:
    chosen = [one.source for one in spread_evenly(find_images(images), config.limit)]
    pixels = [p for part in backbone.pixels(chosen, size=config.size, batch=4) for p in part]
    meter = Meter(progress, len(SAMPLERS) * (len(counts) + 1), "curve")
    series = []
    for sampler, name in SAMPLERS.items():
        own = DenoiseConfig(sampler=sampler, precision=config.precision)

        def average(views: int, seed: int, own: DenoiseConfig = own) -> list[Any]:
            options = replace(own, seed=seed)
            done = [denoise(backbone, one[None], views=views, config=options) for one in pixels]
            meter.advance(1)
            return [tokens.patches[0] for tokens in done]

        reference = average(REFERENCE, config.seed + 1)
        found = []
        for count in counts:
            pairs = zip(average(count, config.seed), reference, strict=True)
            found.append([float(F.cosine_similarity(a, b, dim=-1).mean()) for a, b in pairs])
        means = [bootstrap(np.array(values), seed=config.seed) for values in found]
        series.append(
            Series(
                name,
                tuple(counts),
                tuple(one.mean for one in means),
                tuple(one.low for one in means),
                tuple(one.high for one in means),
                fit_inverse(counts, [one.mean for one in means]),
            )
        )
    return series, len(pixels)


def _measure_registers(
    backbone: Backbone,
    images: Any,
    out: Path,
    counts: Sequence[int],
    config: CurveConfig,
    progress: Progress | None,
) -> tuple[list[Series], int]:
    chosen = [one.source for one in spread_evenly(find_images(images), config.limit)]
    quality = []
    for count in counts:
        cured = cure(
            backbone,
            chosen,
            out=out / f"registers-{count}",
            registers=count,
            epochs=config.epochs,
            size=config.size,
            seed=config.seed,
            precision=config.precision,
            targets_dir=str(out / "targets"),
            keep_anyway=True,
            progress=progress,
        )
        if cured.report.after is None:
            raise TrainingError("no image was held out, so no quality is known; give more images.")
        quality.append(1 - cured.report.after)
    fit = fit_saturation(counts, quality)
    line = Series("cured, one forward pass", tuple(counts), tuple(quality), parameters=fit)
    return [line], len(chosen)


def _show(parameters: dict[str, float]) -> str:
    return ", ".join(f"{name} = {value:.4g}" for name, value in parameters.items())
