"""`clearvit export`: a model for another program, compared with the original."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)

if TYPE_CHECKING:
    from clearvit.export.export import Exported


class Format(str, Enum):
    """What to write."""

    timm = "timm"
    hf = "hf"
    onnx = "onnx"
    openvino = "openvino"


class Quantise(str, Enum):
    """How to shrink weights."""

    int8 = "int8"


def command(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="timm: a local-dir; hf: for AutoModel; onnx, openvino: a graph of one size.",
        ),
    ] = Format.timm,
    size: SizeOption = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", help="Second size of the comparison of timm and hf, as 224 or 448x672."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Images per run of a graph; any number by default.")
    ] = None,
    quantise: Annotated[
        Quantise | None, typer.Option(help="Of onnx: matrices in 8 bits, with the error told.")
    ] = None,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model for timm, transformers, ONNX Runtime or OpenVINO and compare the tokens.

    A copy that gives other tokens than the original is an error.

    Example: `clearvit export dir:cured --format hf --out cured-hf/`

    Example: `clearvit export dir:pruned --format openvino --size 224 --out fast/`
    """
    prepare(threads)
    from clearvit.backbones.load import load
    from clearvit.export.export import export

    backbone = load(model, size=parse_size(size), positions=positions, device=device)  # type: ignore[arg-type]
    done = export(
        backbone,
        out,
        format=format.value,
        check=parse_size(check),
        batch=batch,
        quantise=None if quantise is None else quantise.value,
    )
    for note in done.notes:
        errors.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(_summary(done)))
        return
    print(_in_words(done))
    print(done.loading, end="")
    if format in (Format.onnx, Format.openvino):
        next_step(f"clearvit bench {model} {format.value}:{out}")


def _summary(done: Exported) -> dict[str, object]:
    return {
        "out": str(done.path),
        "format": done.format,
        "difference": done.difference,
        "reader": done.reader,
        "checks": [dataclasses.asdict(check) for check in done.checks],
        "notes": list(done.notes),
        "loading": done.loading,
    }


def _in_words(done: Exported) -> str:
    """Say how the comparison went, as Python comments."""
    sizes = " and ".join(f"{c.size[0]}x{c.size[1]} px" for c in done.checks)
    relative = max(check.relative for check in done.checks)
    found = f"largest difference {done.difference:.1e}, {relative:.1e} of their size"
    if not all(check.passed for check in done.checks):  # int8; anything else was an error
        cosine = min(check.cosine for check in done.checks)
        return f"""\
# {done.path}: int8 in {done.reader} at {sizes}, mean cosine {cosine:.4f} to the original tokens
# ({found}). Load it so:
"""
    return f"""\
# {done.path}: {done.reader} gives the same tokens at {sizes}
# ({found}). Load it so:
"""
