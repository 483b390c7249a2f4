"""`clearvit segment`: masks for a folder from a few examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clearvit.cli.arguments import Images, Model, Out, Run
from clearvit.cli.console import next_step, note, report_skipped, require_images, warned
from clearvit.cli.generate import command
from clearvit.options import Options, option
from clearvit.segmentation.config import SegmentConfig


@dataclass(frozen=True)
class LearnedFrom(Options):
    """What the masks are learned from."""

    examples: Path | None = option(
        None,
        "A folder of labelled images, or a JSON file of COCO, LabelMe or strokes.",
        panel="Examples",
        shown="none, with --model-file",
    )
    model_file: Path | None = option(
        None,
        "The segmenter.json of an earlier run, instead of examples.",
        panel="Examples",
        shown="none, with --examples",
    )


@command("segment")
def segment(
    model: Model, images: Images, out: Out, learned: LearnedFrom, config: SegmentConfig, run: Run
) -> None:
    """Make a mask for every image from a few labelled ones.

    Examples are index masks, binary masks, COCO, LabelMe, or strokes. Masks are PNG files with a
    palette at the size of the images; masks.html shows the least certain ones first. The same
    command continues a run that was interrupted, and takes corrected examples into account.

    Example: `clearvit segment demo photos/ --examples examples/ --out masks/`
    """
    from clearvit.images import find_images
    from clearvit.segmentation.segment import PAGE, segment

    sources = find_images(images)  # a wrong path should not wait for a model
    with warned():
        masks = segment(
            run.load(model),
            sources,
            examples=learned.examples,
            model_file=learned.model_file,
            out=out,
            config=config,
        )
    report_skipped(masks.skipped)
    lines = [f"{len(masks)} masks of {len(masks.classes)} classes in {out}"]
    lines += [f"{out / PAGE}"] if config.page and len(masks) else []
    run.show(masks.to_json(), *lines)
    require_images(len(masks))
    for least in masks.least_confident(1):
        note(f"look first at {least.path} (confidence {least.confidence:.2f})")
    later = ("--model-file", out / "segmenter.json", "--out", "more-masks/")
    next_step("clearvit", "segment", model, "FOLDER", *later)
