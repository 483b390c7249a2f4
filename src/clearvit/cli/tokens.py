"""`clearvit tokens`: the tokens of a folder of images, as files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from clearvit.cli import options
from clearvit.cli.console import (
    load_model,
    next_step,
    prepare,
    progress,
    report_skipped,
    require_images,
)

Dtype = Literal["float16", "float32"]
Engine = Literal["local", "ray"]


def command(
    model: options.Model,
    images: options.Images,
    out: Annotated[Path, typer.Option("--out", help="Directory to write; resumed if begun.")],
    size: options.Size = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks to keep beside the final tokens, as 3,8,-1.")
    ] = None,
    norm: Annotated[bool, typer.Option(help="Apply the final norm.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Precision on disk.")] = "float16",
    batch: options.Batch = 16,
    shard: Annotated[int, typer.Option(min=1, help="Images per file.")] = 64,
    strict: options.Strict = False,
    overwrite: options.Overwrite = False,
    engine: Annotated[
        Engine, typer.Option(help="'ray' spreads the work over a Ray cluster.")
    ] = "local",
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Write patch, class and register tokens of every image as safetensors shards.

    The same command continues a run that was interrupted. Bad files are skipped and listed at the
    end. Read the result with `clearvit.open_tokens(DIR)`.

    Example: `clearvit tokens demo photos/ --out tokens/ --layers 8,-1`
    """
    prepare(threads)
    from clearvit.shards.extract import save_tokens
    from clearvit.shards.plan import TokenConfig

    config = TokenConfig(
        size=options.parse_size(size),
        layers=options.parse_blocks(layers),
        norm=norm,
        dtype=dtype,
        batch=batch,
        shard=shard,
        strict=strict,
        overwrite=overwrite,
        engine=engine,
    )
    backbone = load_model(model, positions, device)
    with progress("tokens") as update:
        store = save_tokens(backbone, images, out=out, config=config, progress=update)
    report_skipped(store.skipped)
    summary = {
        "out": str(out),
        "images": len(store),
        "grid": list(store.grid),
        "layers": list(store.layers),
        "skipped": [asdict(bad) for bad in store.skipped],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"{len(store)} images, {store.grid[0]} x {store.grid[1]} patches each, in {out}")
        next_step(
            f"python -c \"import clearvit; print(clearvit.open_tokens('{out}')[0].map.shape)\""
        )
    require_images(len(store))
