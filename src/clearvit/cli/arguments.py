"""What commands take in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearvit.cli.console import note_once
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
Images = Annotated[
    str,
    typer.Argument(
        help="A folder, a file, a quoted glob pattern, a URL such as s3://bucket/photos, a tar"
        " (WebDataset) or a table (Parquet, Arrow, Lance)."
    ),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="Directory of the result; resumed if begun.")
]


@dataclass(frozen=True)
class Run(Options):
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
    json: bool = option(False, "Print the result as JSON on standard output.", panel="Run")

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


def split_images(arguments: Sequence[str], *, metavar: str, example: str) -> tuple[list[str], str]:
    """Read one or more models, then the images."""
    if len(arguments) < 2:
        raise typer.BadParameter(
            f"give at least one model and then the images: {example}", param_hint=metavar
        )
    *models, images = arguments
    return models, images
