"""`clearvit prune`: a model that removes patches on the way, with or without training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from clearvit.cli.arguments import Model, Out, Run
from clearvit.cli.console import OTHER_IMAGES, next_step, report_skipped, size_words
from clearvit.cli.generate import command
from clearvit.progress import is_main_process
from clearvit.pruning.config import PruneConfig

Training = Annotated[
    str | None,
    typer.Argument(
        metavar="[IMAGES]", help="A folder, a file or a quoted glob pattern to train on."
    ),
]


@command("prune")
def prune(model: Model, out: Out, config: PruneConfig, run: Run, images: Training = None) -> None:
    """Make a ViT faster by removing patches; with images, train which are kept (DynamicViT).

    Without images nothing is trained and a scorer chooses the patches. With images, predictors are
    trained with the dense model as teacher; labels are used where the images lie in one folder for
    each class of its classifier. An interrupted training continues with the same command. The
    result loads with `cv.load("dir:OUT")`.

    Example: `clearvit prune demo --out pruned/ --keep 0.7 --scorer fuse`

    Example: `clearvit prune demo --out pruned/ --keep 2x --size 224`

    Example: `clearvit prune demo photos/ --out pruned/ --keep 0.7 --size 224`
    """
    from clearvit.pruning.cost import macs
    from clearvit.pruning.prune import prune as prune_backbone

    pruned = prune_backbone(run.load(model), images, out=out, config=config)
    if not is_main_process():
        return
    cost = macs(pruned)
    summary: dict[str, object] = {"out": str(out), "keep": list(pruned.plan.keep)}
    summary |= {"stages": list(pruned.plan.stages), "macs": cost.total, "dense_macs": cost.dense}
    lines = [str(cost)]
    if pruned.speed is not None:
        summary["speed"] = pruned.speed.ratio
        lines.append(str(pruned.speed))
    if pruned.report is not None:
        report_skipped(pruned.report.skipped)
        summary |= asdict(pruned.report)
        lines.append(str(pruned.report))
    lines += ["", "import clearvit as cv", f"backbone = cv.load({f'dir:{out}'!r})"]
    run.show(summary, *lines)
    models = (model, f"dir:{out}")
    verb = ("compare", *models, OTHER_IMAGES) if images else ("bench", *models)
    next_step("clearvit", *verb, *size_words(config.size))
