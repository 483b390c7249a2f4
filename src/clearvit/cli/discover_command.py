"""`clearvit discover`: boxes around the objects of images, without labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.arguments import Model, Run
from clearvit.cli.console import next_step, report_skipped, size_words, warned
from clearvit.cli.generate import command
from clearvit.discovery.config import DiscoverConfig
from clearvit.options import Options, option

Images = Annotated[
    str, typer.Argument(help="A folder, a file, a quoted glob pattern, or a PASCAL VOC folder.")
]


@dataclass(frozen=True)
class BoxFiles(Options):
    """What is read and written."""

    split: str = option(
        "trainval", "List of images of a VOC folder, in ImageSets/Main.", panel="Input"
    )
    out: Path = option(
        Path("boxes"), "Directory for boxes.json and the drawings.", panel="Output", short="-o"
    )
    draw: bool = option(True, "Draw the boxes on each image.", panel="Output")


@command("discover")
def discover(
    model: Model, images: Images, config: DiscoverConfig, files: BoxFiles, run: Run
) -> None:
    """Find the objects of images without labels and draw boxes around them.

    Boxes are x0, y0, x1, y1 in pixels of the original image. A PASCAL VOC folder (Annotations,
    ImageSets/Main) also gives CorLoc, the percentage of images whose first box is correct.

    Example: `clearvit discover demo photos/ --out boxes/ --objects 3`

    Example: `clearvit discover demo VOC2012/ --method lost --no-draw`
    """
    from clearvit.datasets.voc import has_voc_boxes, read_voc_boxes
    from clearvit.discovery.boxes import corloc
    from clearvit.discovery.discover import discover
    from clearvit.discovery.discovery_page import draw_discoveries
    from clearvit.files import check_replaceable, replace_json
    from clearvit.images import find_images

    written = ("boxes.json", "boxes.html") if files.draw else ("boxes.json",)
    for name in written:
        check_replaceable(files.out / name)
    truth = read_voc_boxes(images, split=files.split) if has_voc_boxes(images) else None
    # a wrong path should not wait for a model
    sources = find_images(images) if truth is None else truth.sources
    with warned(unless="were skipped"):  # listed at the end
        found = discover(run.load(model), sources, config=config)
    skipped = [*(truth.skipped if truth else ()), *found.skipped]
    report = {"model": model, "method": config.method, **found.to_json()}
    report["skipped"] = [asdict(bad) for bad in skipped]
    if truth is not None:
        boxes = {image.name: image.boxes for image in truth.images}
        report["corloc"] = corloc([one.boxes for one in found], [boxes[one.name] for one in found])
    replace_json(files.out / "boxes.json", report)
    if files.draw:
        draw_discoveries(found, sources, files.out, report)
    report_skipped(skipped)
    lines = [f"{sum(len(one.boxes) for one in found)} boxes in {len(found)} images"]
    lines += [f"{files.out / name}" for name in written]
    if truth is not None:
        lines.append(f"CorLoc {report['corloc']:.1f} % of {len(found)} images")
    run.show(report, *lines)
    next_step("clearvit", "index", model, images, *size_words(config.size), "--out", "index/")
