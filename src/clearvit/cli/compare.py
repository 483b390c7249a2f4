"""`clearvit compare`: what became of the raw model's tokens, and at what cost?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from clearvit.cli import options
from clearvit.cli.console import load_model, next_step, note, prepare, progress, report_skipped

if TYPE_CHECKING:
    from clearvit.compare.compare import Comparison

PIPED = 200  # columns of a table that no terminal shows
VERDICTS = {"none": "green", "non-equivariant": "yellow"}
METAVAR = "RAW CURED… IMAGES"


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar=METAVAR,
            help="The raw model, models to hold against it (timm:NAME, hf:ID, openclip:ARCH/TAG,"
            " dir:PATH or demo), then a folder, a file or a quoted glob pattern.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Directory for compare.html, compare.json and pca.png.")
    ] = Path("compare"),
    labels: Annotated[
        Path | None,
        typer.Option(help="Folder of class folders for nearest neighbours; else IMAGES, if it is."),
    ] = None,
    size: options.Size = None,
    limit: options.Limit = 32,
    views: Annotated[
        int, typer.Option(min=1, help="Views in the reference average; all if there are no more.")
    ] = 200,
    reference_images: Annotated[
        int, typer.Option(min=1, help="Images of the reference average.")
    ] = 8,
    neighbours: Annotated[int, typer.Option(min=1, help="That vote on the class.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="16 images, 4 of them over 50 views.")
    ] = False,
    batch: options.Batch = 4,
    seed: Annotated[int, typer.Option(help="Of views and resampling.")] = 0,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Hold models against the first one: one table, one page, tokens as colours before and after.

    Artifact verdict; artifact tokens in the blocks where the raw model has them; change with a
    shift; distance to a many-view average of the raw model; how much of the class token is kept;
    nearest-neighbour accuracy where there are labels; cost per image.

    The average over many views is the long part; it is kept in OUT/reference, so a run that was
    stopped goes on and another cured model costs little.

    Example: `clearvit compare demo dir:cured/ photos/ --out compare/`

    Example: `clearvit compare demo dir:cured/ photos/ --labels flowers/ --size 224 --quick`
    """
    models, images = options.split_images(
        arguments, metavar=METAVAR, example="clearvit compare demo dir:cured photos/"
    )
    wanted = options.parse_size(size)
    prepare(threads)
    from clearvit.compare.compare import compare
    from clearvit.compare.config import CompareConfig
    from clearvit.compare.page import comparison_json
    from clearvit.images import find_images

    config = CompareConfig(
        size=wanted,
        limit=limit,
        reference_images=reference_images,
        reference_views=views,
        labels=labels,
        neighbours=neighbours,
        batch=batch,
        quick=quick,
        cache=out / "reference",
        seed=seed,
    )
    find_images(images)  # a wrong path should not wait for a model
    backbones = [load_model(model, positions, device) for model in models]
    with progress("compare") as update:
        result = compare(backbones, images, config=config, progress=update)
    report_skipped(result.skipped)
    page = result.save(out)
    if as_json:
        print(json.dumps(comparison_json(result)))
    else:
        _tell(result)
        print(page)
    next_step(result.next_command)


def _tell(result: Comparison) -> None:
    """Print the table, and why some of its cells are empty."""
    from clearvit.compare.table import table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED)
    header, rows = table(result)
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place, title in enumerate(header):
        justify = "left" if place < 2 else "right"
        shown.add_column(title, justify=justify, overflow="fold", vertical="top")  # type: ignore[arg-type]
    for row in rows:
        cells = ["\N{EN DASH}" if cell is None else cell for cell in row]
        shown.add_row(*(_painted(cell) for cell in cells))
    console.print(shown)
    if result.rule is None and any(row.verdict is not None for row in result.rows):
        note("note: no model has artifact tokens by their norm")
    for one in result.rows:
        for text in one.notes:
            note(f"note: {one.model}: {text}")


def _painted(cell: str) -> str:
    from rich.markup import escape

    colour = VERDICTS.get(cell, "red" if cell in ("high-norm", "low-norm", "positional") else "")
    return f"[{colour}]{escape(cell)}[/{colour}]" if colour else escape(cell)
