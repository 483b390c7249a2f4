"""`clearvit bench`: throughput, cost and memory of several models in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.runtime import RuntimeBackbone
from clearvit.bench.config import BenchConfig
from clearvit.bench.machine import sgemm, this_machine
from clearvit.bench.memory import peak_memory
from clearvit.bench.table import Bench, Row
from clearvit.bench.timing import Pass, Spread, ratios, take_turns
from clearvit.errors import ModelError
from clearvit.progress import Progress
from clearvit.prune.cost import macs
from clearvit.prune.prune import prune
from clearvit.prune.pruned import PrunedBackbone


@dataclass(frozen=True)
class Contender:
    """A model and how to load it again; `origin` is empty for one that was only in memory."""

    backbone: Backbone
    origin: str = ""
    keep: tuple[float, ...] | None = None  # shares of a copy that was pruned here


def bench(
    models: str | Backbone | Sequence[str | Backbone],
    *,
    keep: float | Sequence[float] | str | None = None,
    config: BenchConfig | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Time models in turn on random pixels, count their MACs and measure their peak memory.

    Args:
        models: Names for `clearvit.load`, or backbones; the others are held against the first. The
            memory of a backbone that is not loaded by name stays unknown.
        keep: Add a copy of the first model, pruned by class attention, as `clearvit.prune` takes
            it.
        config: Size, batch sizes, rounds.
        progress: Told how many forward passes are done, of how many at most.
    """
    config = config or BenchConfig()
    return run(contenders(models, keep, config.size), config, progress)


def contenders(
    models: str | Backbone | Sequence[str | Backbone],
    keep: float | Sequence[float] | str | None = None,
    size: int | Size | None = None,
    **loading: Any,
) -> list[Contender]:
    """Load the models, and add a pruned copy of the first if `keep` says so.

    Args:
        models: Backbones, or names of `clearvit.load`.
        keep: As for `clearvit.prune`.
        size: Pixels at which the pruned copy is made.
        loading: For `clearvit.load`, as `device="cuda"`.
    """
    given = [models] if isinstance(models, (str, Backbone)) else list(models)
    if not given:
        raise ModelError("there is nothing to time; give at least one model.")
    found = [
        Contender(load(model, **loading), model) if isinstance(model, str) else Contender(model)
        for model in given
    ]
    if keep is not None:
        first = found[0]
        backbone = first.backbone if size is None else first.backbone.resized(size)
        pruned = prune(backbone, keep=keep)
        found.append(Contender(pruned, first.origin, pruned.plan.keep))
    return found


def run(entries: Sequence[Contender], config: BenchConfig, progress: Progress | None) -> Bench:
    """Time what was loaded."""
    size = common_size([entry.backbone for entry in entries], config.size)
    total = len(config.batches) * (config.repeats + 1) * (len(entries) + 1)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    peaks = [_peaks(entry, size, config) for entry in entries]
    rows: list[Row] = []
    rates: list[float] = []
    for batch in sorted(config.batches):
        times, product = _timed(entries, size, batch, config, advance)
        rates += [product / seconds for seconds in times[-1]]
        for entry, own, peak in zip(entries, times, peaks, strict=False):  # the last is sgemm
            rows.append(_row(entry, size, batch, own, times, product, peak))
    if progress:
        progress(total, total)
    return Bench(this_machine(), median(rates), tuple(rows))


def common_size(backbones: Sequence[Backbone], wanted: int | Size | None) -> Size:
    """Settle one size: what was asked, else that of an exported graph, else the first model's."""
    if wanted is not None:
        return backbones[0].fitting_size(wanted)
    fixed = [one for one in backbones if isinstance(one, RuntimeBackbone)]
    return (fixed or backbones)[0].fitting_size()


def _timed(
    entries: Sequence[Contender],
    size: Size,
    batch: int,
    config: BenchConfig,
    advance: Callable[[], None],
) -> tuple[list[list[float]], float]:
    """Time every model and, last, a matrix product; also give the MACs of that."""
    product, cost = sgemm(entries[0].backbone.device)
    passes = [*(_passing(entry.backbone, size, batch) for entry in entries), product]
    with torch.no_grad():
        times = take_turns(
            passes, repeats=config.repeats, patience=config.patience, advance=advance
        )
    return times, cost


def _passing(backbone: Backbone, size: Size, batch: int) -> Pass:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(batch, 3, *backbone.fitting_size(size), generator=generator)
    pixels = pixels.to(backbone.device, backbone.dtype)
    return lambda: float(backbone.forward(pixels).patches[0, 0, 0])  # waits for a GPU


def _row(
    entry: Contender,
    size: Size,
    batch: int,
    own: list[float],
    times: list[list[float]],
    product: float,
    peaks: dict[int, float] | None,
) -> Row:
    cost = _macs(entry.backbone, size)
    shares = [
        batch * (cost or 0.0) / seconds / (product / gemm)
        for seconds, gemm in zip(own, times[-1], strict=True)
    ]
    return Row(
        model=entry.backbone.name,
        batch=batch,
        size=entry.backbone.fitting_size(size),
        speed=Spread.of([batch / seconds for seconds in own]),
        ratio=Spread.of(ratios(times[0], own)),
        rounds=len(own),
        macs=cost,
        share=None if cost is None else median(shares),
        memory=None if peaks is None else peaks.get(batch),
    )


def _macs(backbone: Backbone, size: Size) -> float | None:
    """Count the MACs of one image, where that is known beforehand."""
    if isinstance(backbone, RuntimeBackbone):
        return backbone.facts.macs
    if isinstance(backbone, PrunedBackbone) and backbone.plan.budget == "adaptive":
        return None
    try:
        return macs(backbone, size).total
    except ModelError:  # grid-only
        return None


def _peaks(entry: Contender, size: Size, config: BenchConfig) -> dict[int, float] | None:
    if not config.memory or not entry.origin or entry.backbone.device.type != "cpu":
        return None
    return peak_memory(
        entry.origin,
        keep=entry.keep,
        size=entry.backbone.fitting_size(size),
        batches=config.batches,
        threads=torch.get_num_threads(),
    )
