"""`clearvit look`: the tokens of a few images, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearvit.artifacts.config import LookConfig
from clearvit.cli.arguments import Model, Run, out_option
from clearvit.cli.console import next_step, size_words, warned
from clearvit.cli.generate import command


@command("look")
def look(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Image files, or one folder.")],
    config: LookConfig,
    run: Run,
    out: Annotated[
        Path, out_option("Directory for the figures, one PNG per image, and look.html.")
    ] = Path("look"),
) -> None:
    """Draw what the tokens of each image look like, one PNG per image and a page of all.

    The image, PCA of the patch tokens (one basis for all images), the same on a finer grid with
    --scale, token norms before the final norm, attention of the class token and of each register.

    Example: `clearvit look demo cat.jpg dog.jpg --out look/`

    Example: `clearvit look demo cat.jpg --scale 4 --size 336`
    """
    from clearvit.artifacts.report.look import look, write_look_page

    source = images[0] if len(images) == 1 else images
    with warned():
        paths = look(run.load(model), source, out=out, config=config)
    page = write_look_page(out / "look.html", paths, model)
    run.show({"images": [str(path) for path in paths], "page": str(page)}, *paths, page)
    folder = images[0] if len(images) == 1 else Path(images[0]).parent
    next_step("clearvit", "diagnose", model, folder, *size_words(config.size), "--out", "report/")
