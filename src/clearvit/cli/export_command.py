"""`clearvit export`: a model for another library, compared with the original."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearvit.cli.app import app
from clearvit.cli.arguments import Model, Out, Run
from clearvit.cli.console import next_step, note, show
from clearvit.cli.generate import command
from clearvit.formats.config import ExportConfig

if TYPE_CHECKING:
    from clearvit.formats.export import Exported


@command(app, "export")
def export(model: Model, out: Out, config: ExportConfig, run: Run) -> None:
    """Write a model for timm, transformers, ONNX Runtime or OpenVINO and compare the tokens.

    A copy that gives other tokens than the original is an error.

    Example: `clearvit export dir:cured --format hf --out cured-hf/`

    Example: `clearvit export dir:pruned --format openvino --size 224 --out fast/`

    Example: `clearvit export dir:pruned --format openvino --quantize int8 --calibration photos/
    --out int8/`
    """
    from clearvit.formats.export import export as write_export

    done = write_export(run.load(model), out, config=config)
    for text in done.notes:
        note(f"note: {text}")
    if run.json:
        content = asdict(done)
        print(json.dumps({"out": str(content.pop("path")), **content}))
        return
    show(_describe(done) + done.loading.rstrip())
    if config.format in ("onnx", "openvino"):
        next_step("clearvit", "bench", model, f"{config.format}:{out}")


def _describe(done: Exported) -> str:
    """Say how the comparison went, as Python comments."""
    sizes = " and ".join(f"{c.size[0]}x{c.size[1]} px" for c in done.checks)
    relative = max(check.relative for check in done.checks)
    result = f"{done.reader} gives the same tokens at {sizes}"
    if not all(check.passed for check in done.checks):  # fewer bits; anything else was an error
        cosine = min(check.cosine for check in done.checks)
        result = (
            f"fewer bits in {done.reader} at {sizes}, mean cosine {cosine:.4f} to the original"
            " tokens"
        )
    return f"""\
# {done.path}: {result}
# (largest difference {done.difference:.1e}, {relative:.1e} of their RMS). Load it with:
"""
