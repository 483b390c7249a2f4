"""`clearvit export`: a model for another program, compared with the original."""

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
    parse_size,
    prepare,
)


class Format(str, Enum):
    """What to write."""

    timm = "timm"
    hf = "hf"


def command(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    format: Annotated[
        Format, typer.Option("--format", help="timm: a local-dir; hf: for AutoModel.")
    ] = Format.timm,
    size: SizeOption = None,
    check: Annotated[
        str | None,
        typer.Option("--check", help="Second size of the comparison, as 224 or 448x672."),
    ] = None,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model for timm or transformers, reload it there and compare the tokens.

    A copy that gives other tokens than the original is an error.

    Example: `clearvit export dir:cured --format hf --out cured-hf/`
    """
    prepare(threads)
    from clearvit.backbones.load import load
    from clearvit.export.export import export

    backbone = load(model, size=parse_size(size), positions=positions, device=device)  # type: ignore[arg-type]
    done = export(backbone, out, format=format.value, check=parse_size(check))
    for note in done.notes:
        errors.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        checks = [{"size": list(c.size), "difference": c.difference} for c in done.checks]
        summary = {
            "out": str(done.path),
            "format": done.format,
            "difference": done.difference,
            "reader": done.reader,
            "checks": checks,
            "notes": list(done.notes),
            "loading": done.loading,
        }
        print(json.dumps(summary))
        return
    sizes = " and ".join(f"{c.size[0]}x{c.size[1]} px" for c in done.checks)
    print(f"# {done.path}: {done.reader} gives the same tokens at {sizes}")
    print(f"# (largest difference {done.difference:.1e}). Load it so:\n")
    print(done.loading, end="")
