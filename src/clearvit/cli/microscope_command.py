"""`clearvit microscope`: one page in which to look at the tokens of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clearvit.cli.arguments import ModelsAndImages, ResultFile, Run, out_option, split_images
from clearvit.cli.console import next_step, report_skipped, warned
from clearvit.cli.generate import command
from clearvit.microscopy.config import MicroscopeConfig


@command("microscope")
def microscope(
    arguments: ModelsAndImages,
    config: MicroscopeConfig,
    run: Run,
    file: ResultFile,
    out: Annotated[Path, out_option("The page, an .html file.")] = Path("microscope.html"),
) -> None:
    """Write one page in which to look at tokens; it needs no network and can be mailed.

    Point at a patch: every model shows how similar all other patches are to it, in this image, in a
    second one and in all of them. Block by block: norms with flagged tokens, principal components,
    keys, queries, values, attention. Strokes give a mask. With --views the first model is shown a
    second time with tokens averaged over views, with --scale on a finer grid, with both as both.

    Example: `clearvit microscope demo photos/ --out page.html`

    Example: `clearvit microscope demo dir:cured/ photos/ --scale 2 --size 336 --megabytes 20`
    """
    models, images = split_images(arguments, "microscope")
    from clearvit.microscopy.microscope_page import microscope as write_microscope

    file.check(out)
    backbones = [run.load(model) for model in models]
    with warned(unless="skipped "):
        result = write_microscope(
            backbones, images, out=out, overwrite=file.overwrite, config=config
        )
    report_skipped(result.skipped)
    run.show(result.to_json(), f"{result.path} ({result.bytes / 1e6:.1f} MB)")
    next_step("clearvit", "diagnose", models[0], images, "--out", "diagnosis/")
