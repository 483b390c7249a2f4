"""`clearvit tokens`: the tokens of a folder of images, as files."""

from __future__ import annotations

import json
from enum import Enum
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
    progress,
    report_skipped,
)


class Dtype(str, Enum):
    """Precision on disk."""

    float16 = "float16"
    float32 = "float32"


class Engine(str, Enum):
    """Where the work is done."""

    local = "local"
    ray = "ray"


def command(
    model: Model,
    images: Annotated[str, typer.Argument(help="A folder, a file or a quoted glob pattern.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write; resumed if begun.")],
    size: SizeOption = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks to keep beside the final tokens, as 3,8,-1.")
    ] = None,
    norm: Annotated[bool, typer.Option(help="Apply the final norm.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Precision on disk.")] = Dtype.float16,
    batch: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 16,
    shard: Annotated[int, typer.Option(min=1, help="Images per file.")] = 64,
    strict: Annotated[bool, typer.Option(help="Make the first bad file an error.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what another run left.")] = False,
    engine: Annotated[
        Engine, typer.Option(help="'ray' spreads the work over a Ray cluster.")
    ] = Engine.local,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write patch, class and register tokens of every image as safetensors shards.

    The same command continues a run that was interrupted. Bad files are skipped and listed at the
    end. Read the result with `clearvit.open_tokens(DIR)`.

    Example: `clearvit tokens demo photos/ --out tokens/ --layers 8,-1`
    """
    prepare(threads)
    from clearvit.backbones.load import load
    from clearvit.shards.extract import save_tokens
    from clearvit.shards.plan import TokenConfig

    config = TokenConfig(
        size=parse_size(size),
        layers=parse_blocks(layers),
        norm=norm,
        dtype=dtype.value,
        batch=batch,
        shard=shard,
        strict=strict,
        overwrite=overwrite,
        engine=engine.value,
    )
    backbone = load(model, positions=positions, device=device)  # type: ignore[arg-type]
    with progress("tokens") as update:
        store = save_tokens(backbone, images, out=out, config=config, progress=update)
    report_skipped(store.skipped)
    summary = {
        "out": str(out),
        "images": len(store),
        "grid": list(store.grid),
        "layers": list(store.layers),
        "skipped": [{"name": bad.name, "reason": bad.reason} for bad in store.skipped],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"{len(store)} images, {store.grid[0]} x {store.grid[1]} patches each, in {out}")
        next_step(
            f"python -c \"import clearvit; print(clearvit.open_tokens('{out}')[0].map.shape)\""
        )
    if not len(store):
        errors.print("error: no image could be read", style="bold red")
        raise typer.Exit(1)
