"""`clearvit demo`: one story, from the diagnosis of a real DINOv2 to a report of all it did."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import errors, note

if TYPE_CHECKING:
    from clearvit.demo.photos import Folders


@dataclass(frozen=True)
class Step:
    """One command of the story."""

    question: str
    arguments: tuple[str, ...]
    page: Path | None = None  # that it leaves for the report

    @property
    def shell(self) -> str:
        """The command as one would type it."""
        return shlex.join(["clearvit", *self.arguments])


@dataclass(frozen=True)
class Pace:
    """How much of everything."""

    size: int  # pixels
    parts: int  # cut out of every photo, to learn from
    epochs: int
    views: int  # of the reference
    repeats: int  # rounds of the speed test


FULL = Pace(size=336, parts=8, epochs=6, views=50, repeats=5)
QUICK = Pace(size=224, parts=4, epochs=3, views=20, repeats=3)


def command(
    images: Annotated[
        Path | None, typer.Option(help="A folder of your own photos, 12 or more.")
    ] = None,
    model: Annotated[str, typer.Option(help="Any ViT that clearvit loads.")] = "demo",
    out: Annotated[
        Path | None, typer.Option(help="Directory for all of it; demo/, or demo-quick/.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter.")] = False,
    as_json: options.Json = False,
) -> None:
    """Diagnose, cure, compare, discover, search and prune a real ViT; end with one report.

    Every step is a command that you could type; it is shown first. The photos are some that ship
    inside installed packages. Interrupted, the same command goes on.

    Example: `clearvit demo --quick`

    Example: `clearvit demo --images photos/ --out demo/`
    """
    from clearvit.cli import app
    from clearvit.demo.photos import prepare_photos
    from clearvit.report.book import bind

    begun = time.monotonic()
    pace = QUICK if quick else FULL
    out = out or Path("demo-quick" if quick else "demo")  # one does not go on with the other
    folders = prepare_photos(out / "images", images, parts=pace.parts)
    steps = story(model, folders, out, pace)
    for number, step in enumerate(steps, 1):
        errors.print(f"\n[bold]{number}/{len(steps)} {step.question}[/bold]")
        note(f"$ {step.shell}")
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            app(step.arguments, standalone_mode=False)
        sys.stdout.flush()
    shown = [step for step in steps if step.page is not None]
    page = bind(
        [step.page for step in shown if step.page],
        out / "report.html",
        f"The tokens of {model}, before and after",
        subtitle=f"{pace.size} px; every chapter names the command that made it.",
        commands=[step.shell for step in shown],
    )
    minutes = (time.monotonic() - begun) / 60
    if as_json:
        told = {"report": str(page), "minutes": minutes, "commands": [s.shell for s in steps]}
        print(json.dumps(told))
        return
    errors.print(f"\n{minutes:.1f} minutes. Open the report in a browser:")
    print(page)


def story(model: str, photos: Folders, out: Path, pace: Pace) -> list[Step]:
    """Say what is done, in which order."""
    cured, held, size = f"dir:{out / 'cured'}", str(photos.held), ("--size", str(pace.size))
    photo = str(sorted(photos.held.iterdir())[0])
    places = {name: out / name for name in ("diagnosis", "cured", "compare", "boxes", "bench")}

    def to(name: str) -> tuple[str, str]:
        return "--out", str(places[name])

    return [
        Step(
            "Does it have artifact tokens?",
            ("diagnose", model, str(photos.everything), "--quick", *to("diagnosis")),
            places["diagnosis"] / "report.html",
        ),
        Step(
            "Cure it: learn to see in one pass what the average of ten views sees.",
            ("cure", model, str(photos.learn), *size, "--epochs", str(pace.epochs), *to("cured")),
            places["cured"] / "cure.html",
        ),
        Step(
            "What changed, on photos it has not seen?",
            ("compare", model, cured, held, *size, "--views", str(pace.views), *to("compare")),
            places["compare"] / "compare.html",
        ),
        Step(
            "Where are the objects?",
            ("discover", cured, held, *size, *to("boxes")),
            places["boxes"] / "boxes.html",
        ),
        Step(
            "Make the photos searchable.",
            ("index", cured, str(photos.everything), "--size", "224", "--out", str(out / "index")),
        ),
        Step(
            "Which photo is this a part of, and why?",
            (
                *("search", str(out / "index"), str(photos.query), "--k", "3", "--rerank", "10"),
                *("--weight", "1", "--out", str(out / "why.html")),
            ),
            out / "why.html",
        ),
        Step(
            "How much faster with fewer tokens?",
            (
                *("bench", model, "--keep", "0.7", *size, "--batch", "1,8", "--no-memory"),
                *("--repeats", str(pace.repeats), "--picture", photo, *to("bench")),
            ),
            places["bench"] / "bench.html",
        ),
    ]
