"""`clearvit export`: a model for another program, compared with the original."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clearvit.cli import options
from clearvit.cli.console import load_model, next_step, note, prepare

if TYPE_CHECKING:
    from clearvit.export.export import Exported

Format = Literal["timm", "hf", "onnx", "openvino"]
Quantise = Literal["int8"]


def command(
    model: options.Model,
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="timm: a local-dir; hf: for AutoModel; onnx, openvino: a graph of one size.",
        ),
    ] = "timm",
    size: options.Size = None,
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
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Write a model for timm, transformers, ONNX Runtime or OpenVINO and compare the tokens.

    A copy that gives other tokens than the original is an error.

    Example: `clearvit export dir:cured --format hf --out cured-hf/`

    Example: `clearvit export dir:pruned --format openvino --size 224 --out fast/`
    """
    prepare(threads)
    from clearvit.export.export import export

    backbone = load_model(model, positions, device, options.parse_size(size))
    done = export(
        backbone,
        out,
        format=format,
        check=options.parse_size(check),
        batch=batch,
        quantise=quantise,
    )
    for text in done.notes:
        note(f"note: {text}")
    if as_json:
        print(json.dumps(_summary(done)))
        return
    print(_in_words(done))
    print(done.loading, end="")
    if format in ("onnx", "openvino"):
        next_step(f"clearvit bench {model} {format}:{out}")


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
