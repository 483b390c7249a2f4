"""`clearvit demo`: a series of commands, from the diagnosis of a real DINOv2 to one report."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clearvit.cli.app import app
from clearvit.cli.arguments import Output, out_option
from clearvit.cli.console import errors, note, report_skipped
from clearvit.cli.generate import command
from clearvit.demo.config import DemoConfig
from clearvit.progress import show_progress

if TYPE_CHECKING:
    from clearvit.demo.photos import Folders
    from clearvit.demo.steps import Pace, Step


@command("demo")
def demo(
    config: DemoConfig,
    output: Output,
    out: Annotated[
        Path | None,
        out_option(
            "Directory of all results; demo/, or demo-own/ for your own images, or …-quick/."
        ),
    ] = None,
) -> None:
    """Diagnose, cure, compare, discover, segment, search and prune a real ViT: one report.

    Every step is a command that you could type; it is shown first. The photos are some that ship
    inside installed packages. The same command continues an interrupted demo.

    Example: `clearvit demo --quick`

    Example: `clearvit demo --images photos/ --out demo/`
    """
    begun = time.monotonic()
    out = out or Path(config.folder)
    note(f"photos: {config.images or 'of installed packages'}; results: {out}")
    with show_progress():
        folders, steps, pace = _prepare(config, out)
    report_skipped(folders.skipped)
    for number, step in enumerate(steps, 1):
        errors.print(f"\n{number}/{len(steps)} {step.question}", style="bold", soft_wrap=True)
        note(f"$ {step.shell}")
        with contextlib.redirect_stdout(sys.stderr if output.json else sys.stdout):
            app(step.arguments, standalone_mode=False)
        sys.stdout.flush()
    from clearvit.demo.cover import NAMES, write_cover
    from clearvit.demo.slides import write_slides
    from clearvit.report.combine import combine_pages

    chapters = [step for step in steps if step.page is not None]
    photo = min(folders.held.iterdir())
    note("\nThe report: its first page is drawn.")
    with show_progress():
        cover = write_cover(out, config.model, photo, pace.cure_size, device=config.device)
    page = combine_pages(
        [cover, *(step.page for step in chapters if step.page)],
        out / "report.html",
        f"The tokens of {NAMES.get(config.model, config.model)}, before and after",
        subtitle=f"{pace.size} px unless said otherwise; every chapter names its command.",
        commands=["", *(step.shell for step in chapters)],
        titles=["", *(step.question for step in chapters)],
    )
    slides = write_slides(page, out / "slides")
    minutes = (time.monotonic() - begun) / 60
    note(f"\n{minutes:.1f} minutes; {len(slides)} slides in {out / 'slides'}. Open the report:")
    commands = [step.shell for step in steps]
    output.show({"report": str(page), "minutes": minutes, "commands": commands}, page)


def _prepare(config: DemoConfig, out: Path) -> tuple[Folders, list[Step], Pace]:
    """Check what the demo needs, lay out its photos and list its commands."""
    from clearvit.backbones.load import pick_device  # these take seconds
    from clearvit.demo.photos import prepare_photos
    from clearvit.demo.steps import FULL, QUICK, list_steps, require_libraries

    pace = QUICK if config.quick else FULL
    require_libraries()
    pick_device(config.device)  # before any work
    folders = prepare_photos(out / "images", config.images, parts=pace.parts)
    return folders, list_steps(config.model, folders, out, pace, config.device), pace
