"""`clearvit bench`: models side by side on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import next_step, note, prepare, progress
from clearvit.cli.prune import parse_shares


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="One or more of timm:NAME, hf:ID, dir:PATH, onnx:PATH, openvino:PATH or demo.",
            show_default=False,
        ),
    ],
    batch: Annotated[str, typer.Option(help="Images per forward pass, as 1,8,32.")] = "1,8,32",
    keep: Annotated[
        str | None,
        typer.Option(help="Add a pruned copy of the first model: 0.7, 0.7,0.5,0.3 or 2x."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 7,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds per batch size; three rounds are made anyway.")
    ] = 60.0,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure peaks in processes of their own.")
    ] = True,
    picture: Annotated[
        list[str] | None,
        typer.Option(help="Images on which to draw the patches kept at each stage."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory for the page, bench.json and pictures.")
    ] = None,
    size: options.Size = None,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Time models in turn; count MACs, measure peak memory, draw kept patches.

    Speed is told as a ratio to the first model: absolute numbers belong to this machine.

    Example: `clearvit bench demo dir:pruned openvino:fast --size 224 --batch 1,8`

    Example: `clearvit bench demo --keep 0.7 --size 224 --picture cat.jpg --out bench/`
    """
    wanted, batches = options.parse_size(size), _batches(batch)
    shares = None if keep is None else parse_shares(keep)
    prepare(threads)
    from clearvit.bench.bench import contenders, run
    from clearvit.bench.config import BenchConfig
    from clearvit.bench.page import write_bench_page
    from clearvit.files import write_json
    from clearvit.prune.kept import draw_kept
    from clearvit.prune.pruned import PrunedBackbone

    config = BenchConfig(
        size=wanted, batches=batches, repeats=repeats, patience=patience, memory=memory
    )
    entries = contenders(models, shares, wanted, positions=positions, device=device)
    drawn: list[Path] = []
    if picture:
        pruned = [e.backbone for e in entries if isinstance(e.backbone, PrunedBackbone)]
        images = picture[0] if len(picture) == 1 else picture
        drawn = draw_kept(pruned, images, out=out or Path("bench"), size=wanted)
    with progress("bench") as update:
        result = run(entries, config, update)
    content = {**result.to_json(), "pictures": [str(path) for path in drawn]}
    if out is not None:
        write_json(out / "bench.json", content)
        write_bench_page(out / "bench.html", result, drawn)
    if as_json:
        print(json.dumps(content))
        return
    print(result.text())
    for path in drawn:
        note(f"drawn: {path}")
    next_step(f"clearvit compare {' '.join(models)} FOLDER --out compare/")


def _batches(text: str) -> tuple[int, ...]:
    """Read "1,8,32"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"'{text}' is no list of batch sizes; write 1,8,32.")
    return tuple(int(part) for part in parts)
