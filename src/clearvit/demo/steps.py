"""The commands of the demo, in order."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from clearvit.backbones.load import CURED_DEMO
from clearvit.demo.photos import Folders
from clearvit.errors import missing_extra
from clearvit.images import read_image


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

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
    cure_size: int  # pixels where raw and cured are compared; artifacts are common from 336 on
    parts: int  # crops of every photo, to train on
    epochs: int
    views: int  # of the reference
    rounds: int  # of the speed test


FULL = Pace(size=336, cure_size=336, parts=8, epochs=6, views=50, rounds=5)
QUICK = Pace(size=224, cure_size=336, parts=4, epochs=3, views=20, rounds=3)


def require_libraries() -> None:
    """Refuse to begin without what a later step needs.

    Raises:
        ModelError: The search index is not installed.
    """
    if importlib.util.find_spec("lancedb") is None:
        raise missing_extra("lancedb", "demo", "the search in the demo")


def list_steps(
    model: str, photos: Folders, out: Path, pace: Pace, device: str = "auto"
) -> list[Step]:
    """List the commands of the demo, in order; a device other than "auto" is passed on."""
    steps = _steps(model, photos, out, pace)
    if device == "auto":
        return steps
    named = ("--device", device)
    return [replace(step, arguments=(*step.arguments, *named)) for step in steps]


def _steps(model: str, photos: Folders, out: Path, pace: Pace) -> list[Step]:
    trained, held, size = f"dir:{out / 'cured'}", str(photos.held), ("--size", str(pace.size))
    large = ("--size", str(pace.cure_size))
    shipped = (CURED_DEMO,) if model == "demo" else ()  # of a longer training on more photos
    cured = shipped[0] if shipped else trained
    image = str(sorted(photos.held.iterdir())[0])
    folders = {
        name: out / name
        for name in ("diagnosis", "look", "cured", "compare", "boxes", "masks", "bench")
    }

    def to(name: str) -> tuple[str, str]:
        return "--out", str(folders[name])

    return [
        Step(
            "Does it have artifact tokens?",
            ("diagnose", model, str(photos.everything), "--quick", *to("diagnosis")),
            folders["diagnosis"] / "report.html",
        ),
        Step(
            "What do its tokens look like, and on a grid four times as fine?",
            ("look", model, held, *size, "--scale", "4", *to("look")),
            folders["look"] / "look.html",
        ),
        Step(
            "Cure it: learn to see in one pass what the average of ten views sees.",
            (
                *("cure", model, str(photos.learn), *large, "--epochs", str(pace.epochs)),
                *("--keep-anyway", *to("cured")),
            ),
            folders["cured"] / "cure.html",
        ),
        Step(
            "What changed, on photos it has not seen?",
            (
                *("compare", model, *shipped, trained, held),
                *(*large, "--views", str(pace.views), *to("compare")),
            ),
            folders["compare"] / "compare.html",
        ),
        Step(
            "Where are the objects?",
            ("discover", cured, held, *size, *to("boxes")),
            folders["boxes"] / "boxes.html",
        ),
        Step(
            "A few strokes on some photos: which pixels of the others are the same thing?",
            (
                *("segment", cured, str(photos.segment), *size),
                *("--examples", str(photos.strokes), *to("masks")),
            ),
            folders["masks"] / "masks.html",
        ),
        Step(
            "Make the photos searchable.",
            ("index", cured, str(photos.everything), "--size", "224", "--out", str(out / "index")),
        ),
        Step(
            "Which photo is this a part of, and why?",
            (
                *("search", str(out / "index"), str(photos.query), "--k", "3", "--rerank", "10"),
                *("--model", cured, "--weight", "1", "--out", str(out / "why.html")),
            ),
            out / "why.html",
        ),
        Step(
            "Which photos show the middle of this one?",
            (
                *("search", str(out / "index"), image, "--region", middle_of(image), "--k", "3"),
                *("--model", cured, "--out", str(out / "region.html")),
            ),
            out / "region.html",
        ),
        Step(
            "How much faster with fewer tokens?",
            (
                *("bench", model, "--keep", "0.7", *size, "--batch", "1,8", "--no-memory"),
                *("--rounds", str(pace.rounds), "--images", held, "--draw", image, *to("bench")),
            ),
            folders["bench"] / "bench.html",
        ),
    ]


def middle_of(image: str) -> str:
    """Give the middle quarter of an image as x0,y0,x1,y1 in pixels."""
    width, height = read_image(image).size
    return f"{width // 4},{height // 4},{3 * width // 4},{3 * height // 4}"
