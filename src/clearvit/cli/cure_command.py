"""`clearvit cure`: a model with clean tokens, from a folder of images without labels."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clearvit.cli.arguments import IMAGES_HELP, Model, Out, Run
from clearvit.cli.console import OTHER_IMAGES, next_step, report_skipped, size_words
from clearvit.cli.generate import command
from clearvit.cures.config import CureConfig
from clearvit.progress import is_main_process

Learning = Annotated[
    str | None,
    typer.Argument(
        metavar="[IMAGES]",
        help=f"{IMAGES_HELP} Method denoise needs none, method positional only to choose on.",
    ),
]


@command("cure")
def cure(model: Model, out: Out, config: CureConfig, run: Run, images: Learning = None) -> None:
    """Add registers to a ViT and clean its tokens by self-distillation (PH-Reg); no labels.

    First the teacher: the tokens of every image, averaged over shifted and mirrored views, are
    computed once and kept on disk. Then the student: its weights, and new registers, are trained to
    give them in one forward pass. Kill it at any moment; the same command goes on.

    The result loads in plain timm. Several GPUs: `accelerate launch -m clearvit cure …`.

    Example: `clearvit cure demo photos/ --out cured/ --size 336`

    Example: `clearvit cure demo photos/ --out registers/ --method test-time`

    Example: `clearvit cure demo photos/ --out instant/ --method instant`

    Example: `clearvit cure demo --out positional/ --method positional --size 224`

    Example: `clearvit cure demo --out views/ --method denoise --views 4`

    Example: `clearvit cure demo photos/ --out fine/ --method fine`
    """
    from clearvit.backbones.sources.snippets import runnable_here, timm_code
    from clearvit.backbones.vit import VitBackbone
    from clearvit.cures.cure import cure

    given = () if images is None else images
    cured = cure(run.load(model), given, out=out, config=config)
    if not is_main_process():
        return
    report: Any = cured.report
    if report is not None:
        report_skipped(report.skipped)
    registers = cured.prefix_names.count("register")
    content = report.to_json() if report is not None else {"method": config.method}
    lines = [report or f"{cured.name}, in {out}"]
    if type(cured) is VitBackbone and cured.output is None and cured.fine is None:
        lines += ["", runnable_here(timm_code(out, cured))]
    run.show({"out": str(out), **content, "registers": registers}, *lines)
    next_step("clearvit", "compare", model, f"dir:{out}", OTHER_IMAGES, *size_words(config.size))
