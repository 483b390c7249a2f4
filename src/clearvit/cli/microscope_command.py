"""`clearvit microscope`: one page in which to look at the tokens of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.app import app
from clearvit.cli.arguments import ResultFile, Run, split_images
from clearvit.cli.console import next_step, report_skipped, show, warned
from clearvit.cli.generate import command
from clearvit.files import check_replaceable
from clearvit.microscopy.config import MicroscopeConfig

METAVAR = "MODEL… IMAGES"
Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar=METAVAR,
        help="One or more models (timm:NAME, timm:ARCH@FILE, hf:ID, openclip:ARCH/TAG,"
        " dir:PATH or demo), then a folder, a file or a quoted glob pattern.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The page, an .html file.")]


@command(app, "microscope")
def microscope(
    arguments: Arguments,
    config: MicroscopeConfig,
    run: Run,
    file: ResultFile,
    out: Out = Path("microscope.html"),
) -> None:
    """Write one page in which to look at tokens; it needs no network and can be mailed.

    Point at a patch: every model shows how similar all other patches are to it, in this image, in a
    second one and in all of them. Block by block: norms with flagged tokens, principal components,
    keys, queries, values, attention. Strokes give a mask. With --views the first model is shown a
    second time with tokens averaged over views, with --scale on a finer grid, with both as both.

    Example: `clearvit microscope demo photos/ --out page.html`

    Example: `clearvit microscope demo dir:cured/ photos/ --scale 2 --size 336 --megabytes 20`
    """
    models, images = split_images(
        arguments, metavar=METAVAR, example="clearvit microscope demo photos/"
    )
    from clearvit.images import find_images
    from clearvit.microscopy.microscope_page import microscope as write_microscope

    find_images(images)  # a wrong path should not wait for a model
    if not file.overwrite:
        check_replaceable(out)
    backbones = [run.load(model) for model in models]
    with warned(unless="skipped "):
        result = write_microscope(
            backbones, images, out=out, overwrite=file.overwrite, config=config
        )
    report_skipped(result.skipped)
    if run.json:
        print(json.dumps(result.to_json()))
        return
    show(f"{result.path} ({result.bytes / 1e6:.1f} MB)")
    next_step("clearvit", "diagnose", models[0], images, "--out", "diagnosis/")
