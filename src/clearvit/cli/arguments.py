"""What commands take in the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearvit.cli.console import note_once, show
from clearvit.files import check_replaceable
from clearvit.options import Options, PositionRule, Precision, option, precision_option

if TYPE_CHECKING:
    from clearvit.backbones.backbone import Backbone

Model = Annotated[
    str,
    typer.Argument(
        help="timm:NAME, timm:ARCH@FILE, hf:ID, openclip:ARCH/TAG, dir:PATH or demo; see"
        " `clearvit models`."
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL…",
        help="One or more of timm:NAME, timm:ARCH@FILE, hf:ID, openclip:ARCH/TAG, dir:PATH, demo.",
    ),
]
IMAGES_HELP = (
    "A folder, a file, a quoted glob pattern, a URL such as s3://bucket/photos, a tar (WebDataset)"
    " or a table (Parquet, Arrow, Lance)."
)
Images = Annotated[str, typer.Argument(help=IMAGES_HELP)]
ModelsAndImages = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL… IMAGES",
        help="One or more models (timm:NAME, timm:ARCH@FILE, hf:ID, openclip:ARCH/TAG,"
        " dir:PATH or demo), then a folder, a file or a quoted glob pattern.",
        show_default=False,
    ),
]


def out_option(help: str) -> Any:
    """Declare where the result goes."""
    return typer.Option("--out", "-o", help=help, metavar="PATH")


Out = Annotated[Path, out_option("Directory of the result; resumed if begun.")]


@dataclass(frozen=True)
class Output(Options):
    """How the result is printed."""

    json: bool = option(False, "Print the result as JSON on standard output.", panel="Run")

    def show(self, content: Any, *lines: object) -> None:
        """Print the result on standard output, for programs or for people.

        Args:
            content: All of it, as JSON can hold it.
            lines: What people read.
        """
        if self.json:
            print(json.dumps(content), flush=True)
        for line in () if self.json else lines:
            show(line)


@dataclass(frozen=True)
class Run(Output):
    """Where and how a command runs; the same for every verb that runs a model."""

    device: str = option(
        "auto", "Device of the network: auto, cpu, cuda, cuda:1, mps.", panel="Run"
    )
    threads: int | None = option(
        None, "CPU threads of the network.", panel="Run", minimum=1, maximum=1024, shown="all cores"
    )
    positions: PositionRule | None = option(
        None,
        "How position embeddings are interpolated to another size.",
        panel="Run",
        shown="as the model's library does",
    )

    def load(self, model: str, size: int | tuple[int, int] | None = None) -> Backbone:
        """Load a backbone as these options say."""
        from clearvit.backbones.load import load

        loaded = load(model, size=size, positions=self.positions, device=self.device)
        note_once(f"device: {loaded.device}")
        if loaded.note:
            note_once(loaded.note)
        return loaded


@dataclass(frozen=True)
class Extraction(Options):
    """How tasks extract tokens."""

    precision: Precision = precision_option("Run")


@dataclass(frozen=True)
class ResultFile(Options):
    """What happens to a file that stands where the result goes."""

    overwrite: bool = option(False, "Replace a file that clearvit did not write.", panel="Output")

    def check(self, out: Path | None) -> None:
        """Refuse to replace a file of somebody else, before anything is computed."""
        if out is not None and not self.overwrite:
            check_replaceable(out)


def split_images(arguments: Sequence[str], verb: str) -> tuple[list[str], str]:
    """Read one or more models, then the images, which have to be there."""
    if len(arguments) < 2:
        example = f"clearvit {verb} demo photos/"
        raise typer.BadParameter(
            f"give at least one model and then the images: {example}", param_hint="MODEL… IMAGES"
        )
    *models, images = arguments
    check_images(images)
    return models, images


def check_images(images: str) -> None:
    """Look for the images: a wrong path should not wait for a model."""
    from clearvit.images import find_images

    find_images(images)
