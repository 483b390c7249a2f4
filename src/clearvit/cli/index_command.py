"""`clearvit index`: a folder of images that can be searched."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from clearvit.cli.arguments import Images, Model, Run, out_option
from clearvit.cli.console import next_step, note, report_skipped, require_images
from clearvit.cli.generate import command
from clearvit.retrieval.config import IndexConfig

Location = Annotated[str, out_option("Directory or object-store URL of the index; resumed.")]


@command("index")
def index(model: Model, images: Images, out: Location, config: IndexConfig, run: Run) -> None:
    """Index images for `clearvit search`.

    The same command continues a run that was interrupted, and reads only new and changed files.

    Example: `clearvit index demo photos/ --out index/ --size 224`
    """
    from clearvit.images import find_images
    from clearvit.retrieval.index.index import Index
    from clearvit.retrieval.index.query_model import is_wellknown

    sources = find_images(images)  # a wrong path should not wait for a model
    built = Index.build(run.load(model), images, out=out, config=config)
    changes, count = built.changes, len(built)
    report_skipped(changes.skipped)
    summary = {
        "out": out,
        "images": count,
        "added": len(changes.added),
        "changed": len(changes.changed),
        "moved": len(changes.moved),
        "unchanged": changes.unchanged,
        "removed": len(changes.removed),
        "grid": list(built.spec.grid),
        "facet": built.spec.facet,
        "note": built.spec.note,
        "skipped": [asdict(bad) for bad in changes.skipped],
    }
    new, gone = len(changes.added), len(changes.removed)
    run.show(summary, f"{count} images in {out}, {new} new, {gone} removed")
    require_images(count)
    if built.spec.note:
        note(built.spec.note)
    named = () if is_wellknown(model) else ("--model", model)  # else only the index names it
    bad = {one.name for one in changes.skipped}
    query = next((one.source for one in sources if one.name not in bad), "QUERY.jpg")
    next_step("clearvit", "search", out, query, *named)
