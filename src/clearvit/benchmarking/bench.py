"""`cv.bench`: throughput, cost and memory of several models, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.backbones.sources.runtime import RuntimeBackbone
from clearvit.benchmarking.bench_page import write_bench_page
from clearvit.benchmarking.bench_table import Bench, BenchRow
from clearvit.benchmarking.config import BenchConfig
from clearvit.benchmarking.machine import sgemm, this_machine
from clearvit.benchmarking.memory import peak_memory
from clearvit.benchmarking.quality import Quality, check_images, measure_quality
from clearvit.errors import ModelError, OptionError
from clearvit.files import replace_json
from clearvit.options import Size, with_options
from clearvit.progress import Meter, Progress, silent
from clearvit.pruning.cost import macs
from clearvit.pruning.kept_figure import draw_kept
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.timing import REST, Pass, Spread, speed_ratios, time_interleaved


@dataclass(frozen=True)
class BenchEntry:
    """A model and the name that loads it; `origin` is empty for one that was only in memory."""

    backbone: Backbone
    origin: str = ""
    keep: tuple[float, ...] | None = None  # fractions of a copy that was pruned here


Model = str | Backbone | BenchEntry


@with_options(BenchConfig)
def bench(
    models: Model | Sequence[Model],
    *,
    out: str | Path | None = None,
    config: BenchConfig,
    progress: Progress | None = None,
) -> Bench:
    """Time models in interleaved rounds, and measure what they cost and what they still give.

    Beside the speed stand MACs and peak memory and, with `images`, how near the tokens are to those
    of the first model, and accuracy where the images lie in folders of classes.

    Args:
        models: Names for `clearvit.load`, backbones, or entries that hold both; ratios are to the
            first. The memory of a backbone without a name stays unknown.
        out: Directory for `bench.html`, `bench.json` and the drawn images.
        config: All options at once, instead of keywords.
        progress: Called with the forward passes done and all of them; a bar by default.
    """
    entries = load_entries(models, config)
    if config.draw is not None and out is None:
        raise OptionError("images are drawn into a directory; give out.", "draw")
    drawn: list[Path] = []
    if config.draw is not None and out is not None:
        pruned = [e.backbone for e in entries if isinstance(e.backbone, PrunedBackbone)]
        drawn = draw_kept(pruned, config.draw, out=out, size=config.size)
    if config.images is not None:
        check_images(config.images)
    result = replace(time_entries(entries, config, progress), drawn=tuple(map(str, drawn)))
    if out is not None:
        replace_json(Path(out) / "bench.json", result.to_json())
        write_bench_page(Path(out) / "bench.html", result)
    return result


def load_entries(models: Model | Sequence[Model], config: BenchConfig) -> list[BenchEntry]:
    """Load models that are given by name, and add a pruned copy of the first if one is wanted."""
    given = [models] if isinstance(models, (str, Backbone, BenchEntry)) else list(models)
    if not given:
        raise ModelError("there is nothing to time; give at least one model.")
    entries = [_load_entry(model) for model in given]
    if config.keep is not None:
        pruned = prune(entries[0].backbone, keep=config.keep, size=config.size, progress=silent)
        entries.append(BenchEntry(pruned, entries[0].origin, pruned.plan.keep))
    return entries


def _load_entry(model: Model) -> BenchEntry:
    if isinstance(model, BenchEntry):
        return model
    return BenchEntry(load(model), model) if isinstance(model, str) else BenchEntry(model)


def time_entries(
    entries: Sequence[BenchEntry], config: BenchConfig, progress: Progress | None = None
) -> Bench:
    """Time what was loaded."""
    size = common_size([entry.backbone for entry in entries], config.size)
    total = len(config.batch) * (config.rounds + 1) * (len(entries) + 1)
    meter = Meter(progress, total, "passes")
    peaks = [_measure_peaks(entry, size, config) for entry in entries]
    qualities: list[Quality | None] = [None] * len(entries)
    if config.images is not None:
        backbones = [entry.backbone for entry in entries]
        qualities = [*measure_quality(backbones, config.images, size)]
    rows: list[BenchRow] = []
    rates: list[float] = []
    for batch in sorted(config.batch):
        times, product = _time_batch(entries, size, batch, config, meter.advance)
        rates += [product / seconds for seconds in times[-1]]
        for number, entry in enumerate(entries):  # the last of the times is sgemm's
            gemm_rates = [product / seconds for seconds in times[-1]]
            timed = Timed(batch, times[number], times[0], gemm_rates)
            peak = peaks[number]
            memory = None if peak is None else peak.get(batch)
            row = _make_row(entry.backbone, size, timed, memory)
            rows.append(replace(row, quality=qualities[number]))
    meter.finish()
    return Bench(this_machine(), median(rates), tuple(rows))


def common_size(backbones: Sequence[Backbone], wanted: int | Size | None) -> Size:
    """Choose one size: what was asked, else that of an exported graph, else the first model's."""
    if wanted is not None:
        return backbones[0].fitting_size(wanted)
    fixed = [one for one in backbones if isinstance(one, RuntimeBackbone)]
    return (fixed or backbones)[0].fitting_size()


def _time_batch(
    entries: Sequence[BenchEntry],
    size: Size,
    batch: int,
    config: BenchConfig,
    advance: Callable[[], None],
) -> tuple[list[list[float]], float]:
    """Time every model and, last, a matrix product; also give the MACs of that."""
    product, cost = sgemm(entries[0].backbone.device)
    passes = [*(_make_pass(entry.backbone, size, batch) for entry in entries), product]
    mixed = any(isinstance(entry.backbone, RuntimeBackbone) for entry in entries)
    with torch.no_grad():
        times = time_interleaved(
            passes,
            rounds=config.rounds,
            patience=config.patience,
            advance=advance,
            rest=REST if mixed else 0.0,
        )
    return times, cost


def _make_pass(backbone: Backbone, size: Size, batch: int) -> Pass:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(batch, 3, *backbone.fitting_size(size), generator=generator)
    pixels = pixels.to(backbone.device, backbone.dtype)
    return lambda: float(backbone.forward(pixels).patches[0, 0, 0])  # waits for a GPU


class Timed(NamedTuple):
    """Seconds of one model, of the first, and the rate of the matrix product, round by round."""

    batch: int
    seconds: Sequence[float]
    first: Sequence[float]
    gemm_rates: Sequence[float]  # MACs per second


def _make_row(backbone: Backbone, size: Size, timed: Timed, memory: float | None) -> BenchRow:
    batch, seconds, first, gemm_rates = timed
    cost = _macs(backbone, size)
    pairs = zip(seconds, gemm_rates, strict=True)
    fractions = [batch * (cost or 0.0) / own / rate for own, rate in pairs]
    return BenchRow(
        model=backbone.name,
        batch=batch,
        size=backbone.fitting_size(size),
        speed=Spread.of([batch / own for own in seconds]),
        ratio=Spread.of(speed_ratios(first, seconds)),
        rounds=len(seconds),
        macs=cost,
        gemm_fraction=None if cost is None else median(fractions),
        memory=memory,
    )


def _macs(backbone: Backbone, size: Size) -> float | None:
    """Count the MACs of one image, where that is known beforehand."""
    if isinstance(backbone, RuntimeBackbone):
        return backbone.facts.macs
    try:
        return macs(backbone, size).total
    except ModelError:  # grid-only
        return None


def _measure_peaks(entry: BenchEntry, size: Size, config: BenchConfig) -> dict[int, float] | None:
    if not config.memory or not entry.origin or entry.backbone.device.type != "cpu":
        return None
    return peak_memory(
        entry.origin,
        keep=entry.keep,
        size=entry.backbone.fitting_size(size),
        batches=config.batch,
        threads=torch.get_num_threads(),
    )
