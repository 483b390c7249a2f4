"""`clearvit diagnose`: does this model have artifact tokens, which, where, since which block?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.artifacts.config import DiagnoseConfig
from clearvit.cli.app import app
from clearvit.cli.arguments import Run, split_images
from clearvit.cli.console import note, report_skipped, show
from clearvit.cli.generate import command
from clearvit.files import check_replaceable

METAVAR = "MODEL… IMAGES"
Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar=METAVAR,
        help="One or more models (timm:NAME, timm:ARCH@FILE, hf:ID, openclip:ARCH/TAG,"
        " dir:PATH or demo), then a folder, a file or a quoted glob pattern.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="Directory for report.html and report.json, or one .html file."
    ),
]


@command(app, "diagnose")
def diagnose(
    arguments: Arguments,
    config: DiagnoseConfig,
    run: Run,
    out: Out = Path("report"),
) -> None:
    """Find artifact tokens and write a report: one HTML file, one JSON file.

    Norms of all patch tokens before the final norm, block by block; the verdict may be none. A
    folder with one subfolder per class also gives labels for the class probe. Several models are
    compared in the order given.

    Example: `clearvit diagnose demo photos/ --out report/`

    Example: `clearvit diagnose dir:epoch-10 dir:epoch-20 photos/ --quick`
    """
    models, images = split_images(
        arguments, metavar=METAVAR, example="clearvit diagnose demo photos/"
    )
    from clearvit.artifacts.diagnosis import diagnose
    from clearvit.artifacts.report.diagnosis_page import report_file, report_json, write_report
    from clearvit.images import find_images

    find_images(images)  # a wrong path should not wait for a model
    page = report_file(out)
    for target in (page, page.with_suffix(".json")):
        check_replaceable(target)
    results = []
    for model in models:
        results.append(diagnose(run.load(model), images, config=config))
        if not run.json:
            show(results[-1])
    report_skipped(results[0].observations.skipped)
    page = write_report(results, out)
    print(json.dumps(report_json(results))) if run.json else show(page)
    chosen = next((r for r in results if r.findings), results[0])
    note(f"next: {chosen.next_command}")
