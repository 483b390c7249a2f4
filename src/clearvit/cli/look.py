"""`clearvit look`: the tokens of a few images, as pictures."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.console import (
    DeviceOption,
    JsonOption,
    Model,
    PositionsOption,
    SizeOption,
    ThreadsOption,
    errors,
    next_step,
    parse_blocks,
    parse_size,
    prepare,
)


def command(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Image files, or one folder.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for the pictures.")] = Path("look"),
    size: SizeOption = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks whose token norms to draw, as 3,8,-1.")
    ] = None,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw what the tokens of each image look like, one PNG per image.

    Photo, PCA of the patch tokens (one colour space for all images), token norms before the final
    norm, attention of the class token and of each register.

    Example: `clearvit look demo cat.jpg dog.jpg --out look/`
    """
    prepare(threads)
    from clearvit.backbones.load import load
    from clearvit.diagnose.look import look

    backbone = load(model, positions=positions, device=device)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        paths = look(
            backbone,
            images[0] if len(images) == 1 else images,
            out=out,
            size=parse_size(size),
            layers=parse_blocks(layers) or None,
        )
    for note in notes:
        errors.print(f"warning: {note.message}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"pictures": [str(path) for path in paths]}))
        return
    for path in paths:
        print(path)
    next_step(f"clearvit tokens {model} FOLDER --out tokens/")
