"""`clearvit curve`: how clean tokens become with more views or registers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clearvit.cli.arguments import Images, Model, Run, check_images, out_option
from clearvit.cli.console import next_step
from clearvit.cli.generate import command
from clearvit.comparison.config import CurveConfig
from clearvit.files import check_replaceable


@command("curve")
def curve(
    model: Model,
    images: Images,
    config: CurveConfig,
    run: Run,
    out: Annotated[Path, out_option("Directory of the figure and its numbers.")] = Path("curve"),
) -> None:
    """Draw how clean tokens become with more views, or with more registers, with the fit.

    Norms along a series of checkpoints or sizes: `clearvit diagnose MODEL… IMAGES`.

    Example: `clearvit curve demo photos/ --size 224`

    Example: `clearvit curve demo photos/ --over registers --size 224 --limit 160`
    """
    from clearvit.comparison.curves import curve as measure_curve

    check_images(images)
    for suffix in ("json", "png"):
        check_replaceable(out / f"curve-{config.over}.{suffix}")
    found = measure_curve(run.load(model), images, out=out, config=config)
    run.show(found.to_json(), found, out / f"curve-{config.over}.png")
    next_step("clearvit", "cure", model, images, "--out", "cured/")
