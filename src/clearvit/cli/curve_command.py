"""`clearvit curve`: how clean tokens become with more views or registers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.app import app
from clearvit.cli.arguments import Images, Model, Run
from clearvit.cli.console import next_step, show
from clearvit.cli.generate import command
from clearvit.comparison.config import CurveConfig
from clearvit.files import check_replaceable


@command(app, "curve")
def curve(
    model: Model,
    images: Images,
    config: CurveConfig,
    run: Run,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Directory of the figure and its numbers.")
    ] = Path("curve"),
) -> None:
    """Draw how clean tokens become with more views, or with more registers, with the fit.

    Norms along a series of checkpoints or sizes: `clearvit diagnose MODEL… IMAGES`.

    Example: `clearvit curve demo photos/ --size 224`

    Example: `clearvit curve demo photos/ --over registers --size 224 --limit 160`
    """
    from clearvit.comparison.curves import curve as measure_curve
    from clearvit.images import find_images

    find_images(images)  # a wrong path should not wait for a model
    for suffix in ("json", "png"):
        check_replaceable(out / f"curve-{config.over}.{suffix}")
    found = measure_curve(run.load(model), images, out=out, config=config)
    if run.json:
        print(json.dumps(found.to_json()))
        return
    show(found)
    show(out / f"curve-{config.over}.png")
    next_step("clearvit", "cure", model, images, "--out", "cured/")
