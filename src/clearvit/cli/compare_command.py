"""`clearvit compare`: several models on the same images, in one table and one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clearvit.cli.arguments import ModelsAndImages, Run, out_option, split_images
from clearvit.cli.console import note, report_skipped
from clearvit.cli.generate import command
from clearvit.comparison.config import CompareConfig
from clearvit.files import check_replaceable
from clearvit.options import Options, option

if TYPE_CHECKING:
    from clearvit.backbones.backbone import Backbone
    from clearvit.comparison.compare import Comparison

MICROSCOPE = "microscope.html"
FILES = ("compare.json", "compare.html", "pca.png", MICROSCOPE)


@dataclass(frozen=True)
class ComparePages(Options):
    """What is written beside the table."""

    microscope: bool = option(
        True,
        "Write microscope.html too: the images that are drawn, to point at their patches.",
        panel="Output",
    )


@command("compare")
def compare(
    arguments: ModelsAndImages,
    config: CompareConfig,
    pages: ComparePages,
    run: Run,
    out: Annotated[Path, out_option(f"Directory of {', '.join(FILES)}.")] = Path("compare"),
) -> None:
    """Compare models with the first one: a table, a page, and tokens as colors before and after.

    Verdict on artifacts; artifact tokens in the blocks where the raw model has them; change with a
    shift; distance to a many-view average of the raw model; similarity of the class tokens; kNN
    accuracy where there are labels; cost per image.

    The many-view average takes most of the time. It is kept in OUT/reference: a run that was
    stopped continues from there, and another cured model costs little.

    Example: `clearvit compare demo dir:cured/ photos/ --out compare/`

    Example: `clearvit compare demo dir:cured/ photos/ --labels flowers/ --size 224 --quick`
    """
    models, images = split_images(arguments, "compare")
    from clearvit.comparison.compare import compare as compare_models
    from clearvit.comparison.comparison_page import comparison_json

    for name in FILES:
        check_replaceable(out / name)
    backbones = [run.load(model) for model in models]
    result = compare_models(backbones, images, config=replace(config, cache=out / "reference"))
    report_skipped(result.skipped)
    looked = pages.microscope and _write_microscope(result, backbones, images, out, config)
    page = result.save(out, microscope=MICROSCOPE if looked else None)
    run.show(comparison_json(result), result.text(), page)
    if result.rule is None and any(row.verdict is not None for row in result.rows):
        note("note: no model has high- or low-norm tokens")
    for row in result.rows:
        for text in row.notes:
            note(f"note: {row.model}: {text}")
    note(f"next: {result.next_command}")


def _write_microscope(
    result: Comparison, backbones: Sequence[Backbone], images: str, out: Path, config: CompareConfig
) -> bool:
    """Write the microscope of the images that the page draws; none where it draws none."""
    from clearvit.images import find_images
    from clearvit.microscopy.microscope_page import microscope

    drawn = {row.name for row in result.panel_rows}
    sources = [source for source in find_images(images) if source.name in drawn]
    if sources:
        microscope(backbones, sources, out=out / MICROSCOPE, size=config.size)
    return bool(sources)
