"""`clearvit bench`: models side by side on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clearvit.benchmarking.config import BenchConfig
from clearvit.cli.arguments import Models, Run, out_option
from clearvit.cli.console import next_step, note, size_words
from clearvit.cli.generate import command


@command("bench")
def bench(
    models: Models,
    config: BenchConfig,
    run: Run,
    out: Annotated[
        Path | None, out_option("Directory of bench.html, bench.json and drawn images.")
    ] = None,
) -> None:
    """Time models in interleaved rounds, and show what they cost and what they still give.

    Speed is given as a ratio to the first model; images per second depend on this machine. With
    `--images` the tokens of all models are compared with the first one's.

    Example: `clearvit bench demo dir:pruned openvino:fast --size 224 --batch 1,8`

    Example: `clearvit bench demo --keep 0.7 --size 224 --images classes/`

    Example: `clearvit bench demo --keep 0.7 --size 224 --draw cat.jpg --out bench/`
    """
    from clearvit.benchmarking.bench import BenchEntry
    from clearvit.benchmarking.bench import bench as time_models

    entries = [BenchEntry(run.load(model), model) for model in models]
    result = time_models(entries, out=out, config=config)
    run.show(result.to_json(), result.text())
    for path in result.drawn:
        note(f"drawn: {path}")
    if not models[-1].startswith(("onnx:", "openvino:")):
        words = ("--format", "onnx", *size_words(config.size), "--out", "exported/")
        next_step("clearvit", "export", models[-1], *words)
