"""`clearvit finetune`: an embedding trained on labelled images."""

from __future__ import annotations

from typing import Annotated

import typer

from clearvit.cli.arguments import Model, Out, Run
from clearvit.cli.console import next_step
from clearvit.cli.generate import command
from clearvit.finetuning.config import FinetuneConfig
from clearvit.progress import is_main_process

LabelledImages = Annotated[
    str,
    typer.Argument(
        help="A folder with one subfolder per class, a CUB-200-2011, Cars196 or SOP folder, or"
        " places: MSLS, or query/, ref/ and ground_truth.json.",
        show_default=False,
    ),
]


@command("finetune")
def finetune(
    model: Model, images: LabelledImages, out: Out, config: FinetuneConfig, run: Run
) -> None:
    """Train a ViT on classes of images so that images of one class, seen or not, find each other.

    A projection is fitted behind the network; --unfreeze trains the network too. Classes are held
    out in turn to judge, the model as it came in is a candidate, and nothing is written that is no
    better beyond noise. The result is a plain timm model whose head is the projection. Kill it at
    any moment; the same command goes on.

    Example: `clearvit finetune demo cars/ --out tuned/ --size 224`

    Example: `clearvit finetune demo cars/ --out tuned/ --unfreeze low-rank --epochs 10`

    Example: `clearvit finetune demo msls/ --out tuned/ --task places --unfreeze last-2`
    """
    from clearvit.finetuning.metric_learning import finetune

    tuned = finetune(run.load(model), images, out=out, config=config)
    if not is_main_process():
        return
    run.show({"out": str(out), **tuned.report.to_json()}, tuned.report)
    next_step("clearvit", "index", f"dir:{out}", images, "--out", "index/")
