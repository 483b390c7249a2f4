"""`clearvit look`: the tokens of a few images, as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import load_model, next_step, prepare, warned


def command(
    model: options.Model,
    images: Annotated[list[str], typer.Argument(help="Image files, or one folder.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for the pictures.")] = Path("look"),
    size: options.Size = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks whose token norms to draw, as 3,8,-1.")
    ] = None,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Draw what the tokens of each image look like, one PNG per image.

    Photo, PCA of the patch tokens (one colour space for all images), token norms before the final
    norm, attention of the class token and of each register.

    Example: `clearvit look demo cat.jpg dog.jpg --out look/`
    """
    prepare(threads)
    from clearvit.diagnose.look import look

    backbone = load_model(model, positions, device)
    with warned():
        paths = look(
            backbone,
            images[0] if len(images) == 1 else images,
            out=out,
            size=options.parse_size(size),
            layers=options.parse_blocks(layers) or None,
        )
    if as_json:
        print(json.dumps({"pictures": [str(path) for path in paths]}))
        return
    for path in paths:
        print(path)
    next_step(f"clearvit tokens {model} FOLDER --out tokens/")
