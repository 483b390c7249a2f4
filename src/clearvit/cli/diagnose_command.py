"""`clearvit diagnose`: does this model have artifact tokens, which, where, since which block?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clearvit.artifacts.config import DiagnoseConfig
from clearvit.cli.arguments import ModelsAndImages, Run, out_option, split_images
from clearvit.cli.console import note, report_skipped, show
from clearvit.cli.generate import command
from clearvit.files import check_replaceable


@command("diagnose")
def diagnose(
    arguments: ModelsAndImages,
    config: DiagnoseConfig,
    run: Run,
    out: Annotated[
        Path, out_option("Directory for report.html and report.json, or one .html file.")
    ] = Path("report"),
) -> None:
    """Find artifact tokens and write a report: one HTML file, one JSON file.

    Norms of all patch tokens before the final norm, block by block; the verdict may be none. A
    folder with one subfolder per class also gives labels for the class probe. Several models are
    compared in the order given.

    Example: `clearvit diagnose demo photos/ --out report/`

    Example: `clearvit diagnose dir:epoch-10 dir:epoch-20 photos/ --quick`
    """
    models, images = split_images(arguments, "diagnose")
    from clearvit.artifacts.diagnosis import diagnose
    from clearvit.artifacts.report.diagnosis_page import report_file, report_json, write_report

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
    run.show(report_json(results), page)
    chosen = next((r for r in results if r.findings), results[0])
    note(f"next: {chosen.next_command}")
