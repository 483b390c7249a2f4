"""`cv.evaluate`: what frozen tokens are worth in a task, for any number of backbones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ModelError, OptionError, closest
from clearvit.evaluation.config import EvaluateConfig
from clearvit.evaluation.evaluation_table import (
    Metric,
    Result,
    Row,
    Table,
    make_row,
    resample_metrics,
)
from clearvit.evaluation.registry import TASKS
from clearvit.options import Precision
from clearvit.progress import Progress, show_progress

AS_INDEXED = ("retrieval", "faithfulness")  # measure what an index does, which is in float32


def evaluate(
    backbone: Backbone | Iterable[Backbone],
    *,
    task: str,
    data: str | Path,
    config: EvaluateConfig | None = None,
    precision: Precision = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """Measure what the frozen tokens of backbones are worth in a task.

    All backbones see the same images, the same samples of labelled images and the same resampled
    test images. Their weights are not changed. The data are read before the first backbone is
    taken, so an iterator may load them.

    Args:
        backbone: One backbone, or several for one table.
        task: "segmentation", "knn-segmentation", "depth", "classification",
            "geometric-correspondence", "semantic-correspondence", "clustering",
            "zero-shot-segmentation", "zero-shot-classification", "retrieval" or "faithfulness";
            see `clearvit.evaluation.TASKS`.
        data: Folder of the data set: masks in a known layout, rgb beside depth, class folders, or
            images.
        config: All options of the task at once, such as `SegmentationConfig`.
        precision: Number format of the networks: "auto" is bf16 on GPUs and CPUs made for it, "no"
            float32. Probes are in float32, "retrieval" and "faithfulness" too, as an index is.
        progress: Called with the images done and all images, in every pass over images.
        **options: Options of the task by name, the fields of its config, such as `num_labelled`.

    Raises:
        ImageError: The data cannot be used; the message names the file.
        OptionError: An option does not exist or does not fit.
    """
    config = resolve_config(task, config, options)
    prepared = TASKS[task].prepare(Path(data), config)
    given = [backbone] if isinstance(backbone, Backbone) else backbone
    chosen = "no" if task in AS_INDEXED else precision
    backbones = [one.in_precision(chosen) for one in given]
    if not backbones:
        raise ModelError("there is no backbone to evaluate; give at least one.")
    with show_progress() if progress is None else nullcontext(progress) as shown:
        results = [prepared.run(one, shown) for one in backbones]
    rows = _make_rows(_unique_names(backbones), results, config.seed)
    protocol = {**_describe_protocol(backbones, config), **prepared.facts}
    return Table(task, protocol, tuple(rows))


def _make_rows(
    names: Sequence[str], results: Sequence[Sequence[Result]], seed: int
) -> Iterator[Row]:
    """Make the rows of every model, with differences to the first."""
    baseline: dict[tuple[str, int, int], Mapping[str, Metric]] = {}
    for number, (name, found) in enumerate(zip(names, results, strict=True)):
        for result in found:
            setting = (result.setting, result.num_labelled, len(result.rows[0]))
            metrics = resample_metrics(result, seed=seed)
            yield make_row(name, result, metrics, baseline.get(setting))
            if not number:
                baseline[setting] = metrics


def resolve_config(
    task: str, config: EvaluateConfig | None, options: Mapping[str, Any]
) -> EvaluateConfig:
    """Give the config of a task from flat options, or a config changed by them."""
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise OptionError(f"task is '{task}'; use {known}.{closest(str(task), TASKS)}", "task")
    kind = TASKS[task].config
    if config is not None and not isinstance(config, kind):
        raise OptionError(
            f"the task '{task}' takes a {kind.__name__}, not a {type(config).__name__}.", "config"
        )
    return kind.build(options, config)


def _describe_protocol(backbones: Sequence[Backbone], config: EvaluateConfig) -> dict[str, Any]:
    """Name every option that the numbers depend on, with the sizes really used."""
    values: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(config).items()
        if key != "cache"
    }
    values["precision"] = ["bf16" if one.bf16 else "float32" for one in backbones]
    values["size"] = [list(one.fitting_size(config.size)) for one in backbones]
    return {key: str(v) if isinstance(v, Path) else v for key, v in values.items()}


def _unique_names(backbones: Sequence[Backbone]) -> list[str]:
    """Number backbones of one name."""
    names: list[str] = []
    for one in backbones:
        count = sum(name == one.name or name.startswith(f"{one.name} (") for name in names)
        names.append(one.name if not count else f"{one.name} ({count + 1})")
    return names
