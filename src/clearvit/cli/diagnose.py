"""`clearvit diagnose`: does this model have artifact tokens, which, where, since which block?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clearvit.cli import options
from clearvit.cli.console import load_model, next_step, note, prepare, progress, report_skipped

if TYPE_CHECKING:
    from clearvit.backbones.backbone import Backbone
    from clearvit.diagnose.diagnosis import DiagnoseConfig, Diagnosis

COLOURS = {"none": "bold green", "non-equivariant": "bold yellow"}
METAVAR = "MODEL… IMAGES"


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar=METAVAR,
            help="One or more models (timm:NAME, hf:ID, openclip:ARCH/TAG, dir:PATH or demo), then"
            " a folder, a file or a quoted glob pattern.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Directory for report.html and report.json, or a .html.")
    ] = Path("report"),
    size: options.Size = None,
    limit: options.Limit = 64,
    batch: options.Batch = 4,
    quick: Annotated[bool, typer.Option("--quick", help="32 images and no probes.")] = False,
    experiments: Annotated[
        bool, typer.Option(help="Repeat the paper's experiments with linear probes.")
    ] = True,
    equivariance: Annotated[bool, typer.Option(help="Shift a few images by patches.")] = True,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Find artifact tokens and write a report: one HTML file, one JSON file.

    Norms of all patch tokens before the final norm, block by block; the verdict may be none. A
    folder with one subfolder per class also gives labels for the class probe. Several models are
    compared in the order given.

    Example: `clearvit diagnose demo photos/ --out report/`

    Example: `clearvit diagnose dir:epoch-10 dir:epoch-20 photos/ --quick`
    """
    models, images = options.split_images(
        arguments, metavar=METAVAR, example="clearvit diagnose demo photos/"
    )
    wanted = options.parse_size(size)
    prepare(threads)
    from clearvit.diagnose.diagnosis import DiagnoseConfig
    from clearvit.diagnose.page import report_json, write_report
    from clearvit.images import find_images

    config = DiagnoseConfig(
        size=wanted,
        limit=limit,
        batch=batch,
        equivariance=equivariance,
        experiments=experiments,
        quick=quick,
        seed=seed,
    )
    count = len(find_images(images))  # a wrong path should not wait for a model
    results = []
    for model in models:
        backbone = load_model(model, positions, device)
        results.append(_diagnosed(backbone, images, count, config))
        if not as_json:
            _tell(results[-1])
    report_skipped(results[0].observations.skipped)
    page = write_report(results, out)
    if as_json:
        print(json.dumps(report_json(results)))
    else:
        print(page)
    next_step(next((r.next_command for r in results if r.findings), results[0].next_command))


def _diagnosed(backbone: Backbone, images: str, count: int, config: DiagnoseConfig) -> Diagnosis:
    from clearvit.diagnose.diagnosis import diagnose, passes_needed

    passes = passes_needed(count, config)
    seconds = _seconds_per_pass(backbone, config)
    note(
        f"{backbone.name}: {passes} forward passes, about {_in_words(passes * seconds)}"
        + ("" if config.quick or not config.experiments else ", then the probes")
    )
    with progress("diagnose") as update:
        return diagnose(backbone, images, config=config, progress=update)


def _seconds_per_pass(backbone: Backbone, config: DiagnoseConfig) -> float:
    """Time one image of zeros; the pass before it warms up."""
    import torch

    pixels = torch.zeros(1, 3, *backbone.fitting_size(config.size))
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        backbone.tokens(pixels)
        seconds = time.perf_counter() - start
    return seconds


def _tell(diagnosis: Diagnosis) -> None:
    """Print the verdict of one model in a few lines."""
    from clearvit.diagnose.verdict import MEANING

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{diagnosis.model}: ", end="")
    console.print(diagnosis.verdict, style=COLOURS.get(diagnosis.verdict, "bold red"))
    if not diagnosis.findings:
        console.print(f"  {MEANING['none']}")
    for finding in diagnosis.findings:
        sure = f"confidence {100 * finding.confidence:.0f} %"
        console.print(f"  {finding.kind} ({sure}): {finding.evidence}")


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
