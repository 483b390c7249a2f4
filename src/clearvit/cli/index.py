"""`clearvit index`: a folder of photos that can be searched."""

from __future__ import annotations

import json
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
    parse_size,
    prepare,
    progress,
    report_skipped,
)


def command(
    model: Model,
    images: Annotated[str, typer.Argument(help="A folder, a file or a quoted glob pattern.")],
    out: Annotated[
        str, typer.Option("--out", help="Directory or object-store URL; continued if begun.")
    ],
    size: SizeOption = None,
    grid: Annotated[int, typer.Option(min=1, help="Patches kept per side, for --rerank.")] = 7,
    descriptor: Annotated[str, typer.Option(help="auto, class, mean or joint.")] = "auto",
    marginal: Annotated[
        str,
        typer.Option(
            help="Weights of patches: auto, attention, rollout, rollout_min, uniform or"
            " without_artifacts."
        ),
    ] = "auto",
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Also forget files that are no longer there.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 16,
    strict: Annotated[bool, typer.Option(help="Make the first bad file an error.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what another run left.")] = False,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index images for `clearvit search`.

    The same command continues a run that was interrupted, and reads only new and changed files.

    Example: `clearvit index demo photos/ --out index/ --size 224`
    """
    wanted = parse_size(size)
    prepare(threads)
    from clearvit.backbones.load import load
    from clearvit.images import find_images
    from clearvit.retrieval.filling import IndexConfig
    from clearvit.retrieval.index import Index

    config = IndexConfig(
        size=wanted,
        grid=grid,
        descriptor=descriptor,  # type: ignore[arg-type]
        marginal=marginal,  # type: ignore[arg-type]
        batch=batch,
        strict=strict,
        overwrite=overwrite,
    )
    find_images(images)  # a wrong path should not wait for a model
    backbone = load(model, positions=positions, device=device)  # type: ignore[arg-type]
    with progress("index") as update:
        index = Index.build(backbone, images, out=out, config=config, progress=update)
    added = index.changes
    changes = index.refresh(images) if refresh else added
    report_skipped(added.skipped)
    count = len(index)
    summary = {
        "out": out,
        "images": count,
        "added": len(added.added),
        "changed": len(added.changed),
        "removed": len(changes.removed),
        "grid": list(index.recipe.grid),
        "skipped": [{"name": bad.name, "reason": bad.reason} for bad in added.skipped],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"{count} images in {out}, {len(added.added)} new, {len(changes.removed)} removed")
        next_step(f"clearvit search {out} QUERY.jpg --rerank 100")
    if not count:
        errors.print("error: no image could be read", style="bold red")
        raise typer.Exit(1)
