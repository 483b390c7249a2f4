"""`clearvit index`: a folder of photos that can be searched."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

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


def command(
    model: options.Model,
    images: options.Images,
    out: Annotated[
        str, typer.Option("--out", help="Directory or object-store URL; continued if begun.")
    ],
    size: options.Size = None,
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
    batch: options.Batch = 16,
    strict: options.Strict = False,
    overwrite: options.Overwrite = False,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Index images for `clearvit search`.

    The same command continues a run that was interrupted, and reads only new and changed files.

    Example: `clearvit index demo photos/ --out index/ --size 224`
    """
    wanted = options.parse_size(size)
    prepare(threads)
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
    backbone = load_model(model, positions, device)
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
        "skipped": [asdict(bad) for bad in added.skipped],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(f"{count} images in {out}, {len(added.added)} new, {len(changes.removed)} removed")
        next_step(f"clearvit search {out} QUERY.jpg --rerank 100")
    require_images(count)
