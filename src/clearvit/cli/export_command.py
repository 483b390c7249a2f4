"""`clearvit export`: a model for another library, compared with the original."""

from __future__ import annotations

from dataclasses import asdict

from clearvit.cli.arguments import Model, Out, Run
from clearvit.cli.console import next_step, note
from clearvit.cli.generate import command
from clearvit.formats.config import ExportConfig


@command("export")
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
    content = {"out": str(done.path), **asdict(done)}
    del content["path"]
    run.show(content, done)
    if config.format in ("onnx", "openvino"):
        next_step("clearvit", "bench", model, f"{config.format}:{out}")
